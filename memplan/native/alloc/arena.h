// One reserved range of addresses, and its pages. Which of its bytes are in use, the
// server of requests knows.
//
// Not thread-safe: the owner holds a lock. Offsets are in bytes from the start of the
// arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "replay/ranges.h"

namespace memplan {

constexpr std::uint64_t kAlignment = 64;  // of blocks, as torch wants them
constexpr std::uint64_t kHugePage = 2 << 20;

class Arena {
 public:
  // Reserves `bytes` of address space, aligned to 2 MiB; no page is touched yet.
  // Throws std::bad_alloc if the system refuses.
  explicit Arena(std::uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A block was placed at `offset`, or freed there; `bytes` is rounded.
  void note_use(std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t end = offset + bytes;
    if (top_ < end) top_ = end;
    const std::uint64_t last = (end - 1) / kHugePage;
    for (std::uint64_t i = offset / kHugePage; i <= last; ++i) last_use_[i] = now_;
  }
  // Returns the pages that lie wholly in [offset, offset + bytes) to the system.
  void return_pages(std::uint64_t offset, std::uint64_t bytes);
  // Returns all pages of which nothing is `used`, as far up as anything ever was.
  void return_dead_pages(const Ranges::Map& used);
  // Of those pages that lie wholly in [offset, offset + bytes), how many are resident,
  // as a part of all; 1 where there are none, or it cannot be told.
  double resident_part(std::uint64_t offset, std::uint64_t bytes) const;

  // Returns to the system the pages that no block has used in the last `age` steps, and
  // of which nothing is `used` now. Called once at each step boundary; returns how many
  // bytes went.
  std::uint64_t release_cold(const Ranges::Map& used, std::uint32_t age);

  bool contains(const void* pointer) const {
    return static_cast<const char*>(pointer) - base_ < static_cast<std::ptrdiff_t>(size_) &&
           pointer >= base_;
  }
  void* address(std::uint64_t offset) const { return base_ + offset; }
  std::uint64_t offset_of(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const char*>(pointer) - base_);
  }
  std::uint64_t size() const { return size_; }
  // One past the highest byte that any block ever had.
  std::uint64_t top() const { return top_; }

 private:
  char* base_;
  std::uint64_t size_;
  std::uint64_t top_ = 0;
  std::uint32_t now_ = 1;  // steps so far, from 1
  // Per 2 MiB: the last step in which a block was placed there, 0 for pages that the
  // system has (never touched, or returned).
  std::vector<std::uint32_t> last_use_;
};

}  // namespace memplan
