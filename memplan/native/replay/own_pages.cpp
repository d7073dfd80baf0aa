#include "replay/own_pages.h"

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace memplan {
namespace {

class OwnPages final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    return start;
  }
  void do_deallocate(void* start, std::size_t bytes, std::size_t) override {
    munmap(start, bytes);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

}  // namespace

std::pmr::memory_resource* own_pages() {
  static OwnPages* const pages = new OwnPages;
  return pages;
}

}  // namespace memplan
