#include "alloc/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace memplan {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;
const auto kPage = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));

}  // namespace

Arena::Arena(std::uint64_t bytes) : size_(round_up(bytes, kAlignment)) {
  // More than any address space; and what follows must not wrap around.
  if (bytes > kMostBytes) throw std::bad_alloc();
  const std::uint64_t mapped = round_up(size_, kHugePage) + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uint64_t>(start);
  base_ = reinterpret_cast<char*>(round_up(address, kHugePage));
  last_use_.resize(round_up(size_, kHugePage) / kHugePage);
}

void Arena::return_pages(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t begin = round_up(offset, kPage);
  const std::uint64_t end = (offset + bytes) / kPage * kPage;
  if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
}

void Arena::return_dead_pages(const Ranges::Map& used) {
  std::uint64_t dead = 0;
  for (const auto& [start, end] : used) {
    return_pages(dead, start - dead);
    dead = end;
  }
  if (dead < top_) return_pages(dead, top_ - dead);
}

double Arena::resident_part(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t begin = round_up(offset, kPage);
  const std::uint64_t end = (offset + bytes) / kPage * kPage;
  if (begin >= end) return 1.0;
  std::vector<unsigned char> pages((end - begin) / kPage);
  if (mincore(base_ + begin, end - begin, pages.data()) != 0) return 1.0;
  const auto resident = std::count_if(pages.begin(), pages.end(),
                                      [](unsigned char page) { return (page & 1) != 0; });
  return static_cast<double>(resident) / static_cast<double>(pages.size());
}

std::uint64_t Arena::release_cold(const Ranges::Map& used, std::uint32_t age) {
  ++now_;
  if (now_ <= age) return 0;
  const std::uint32_t oldest = now_ - age;
  std::uint64_t returned = 0;
  auto block = used.begin();
  for (std::size_t i = 0; i < last_use_.size(); ++i) {
    if (last_use_[i] == 0 || last_use_[i] >= oldest) continue;
    const std::uint64_t begin = i * kHugePage;
    while (block != used.end() && block->second <= begin) ++block;
    if (block != used.end() && block->first < begin + kHugePage) continue;
    if (madvise(base_ + begin, kHugePage, MADV_DONTNEED) != 0) continue;
    last_use_[i] = 0;
    returned += kHugePage;
  }
  return returned;
}

}  // namespace memplan
