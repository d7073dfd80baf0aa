// Large blocks of a process that go by torch's allocator: operators' scratch, buffers of
// the interpreter and of libraries.
//
// They lie in one reserved range of addresses, lowest best fit first. Freed pages are
// kept for the next block, which then needs no page fault, but no more of them than the
// blocks of the last seconds needed at their most: the rest goes back to the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace memplan {

struct LargeCounts {
  std::uint64_t requests = 0;
  std::uint64_t live = 0;       // bytes, whole pages
  std::uint64_t most_live = 0;  // ever
  std::uint64_t kept = 0;       // bytes of freed pages that are still resident
  std::uint64_t returned = 0;   // bytes that went back to the system
};

class LargeBlocks {
 public:
  // Reserves addresses, as many as the system grants; none of their pages is touched.
  LargeBlocks();

  // A block of at least `bytes`, aligned to a page, or null: another must serve it.
  // zeroed: it is all zeros.
  void* allocate(std::size_t bytes, bool zeroed);
  // Gives back a block that `contains` knows.
  void release(void* pointer);
  // The bytes of such a block.
  std::size_t size_of(const void* pointer);
  bool contains(const void* pointer) const {
    return reinterpret_cast<std::uintptr_t>(pointer) - base_ < size_;
  }
  LargeCounts counts();

  // Around a fork, as the child has no other thread that could unlock it.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  using Bytes = std::map<std::uint64_t, std::uint64_t>;  // offset -> end

  void add_hole(std::uint64_t begin, std::uint64_t end);
  void remove_hole(Bytes::iterator hole);
  // Takes [begin, end) out of the kept pages; whether any of it was kept. zeroed: those
  // pages go back to the system, so that they are zeros.
  void take_kept(std::uint64_t begin, std::uint64_t end, bool zeroed);
  void keep(std::uint64_t begin, std::uint64_t end);
  void return_pages(std::uint64_t begin, std::uint64_t end);
  // Returns kept pages, the highest first, until no more is resident than was needed.
  void trim();

  std::mutex mutex_;
  std::uintptr_t base_ = 0;
  std::uintptr_t size_ = 0;
  Bytes live_;
  Bytes holes_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // (bytes, offset)
  Bytes kept_;
  LargeCounts counts_;
  // The most that was live in this stretch of time and in the one before.
  std::uint64_t most_now_ = 0;
  std::uint64_t most_before_ = 0;
  std::int64_t stretch_begun_ = 0;
};

}  // namespace memplan
