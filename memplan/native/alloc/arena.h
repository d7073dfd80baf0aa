// One reserved range of addresses and the blocks alive in it.
//
// Not thread-safe: the owner holds a lock. Offsets are in bytes from the start of
// the arena, sizes are rounded up to 64 bytes on the way in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <vector>

namespace memplan {

constexpr std::uint64_t kAlignment = 64;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

class Arena {
 public:
  // Reserves `bytes` of address space, aligned to 2 MiB; no page is touched yet.
  // Throws std::bad_alloc if the system refuses.
  explicit Arena(std::uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Takes [offset, offset + bytes) if it lies in the arena and no live block
  // overlaps it.
  bool take(std::uint64_t offset, std::uint64_t bytes);
  // Best fit below `limit`: the smallest gap that holds `bytes`, the lowest among
  // equals. Returns its offset, or -1 when no gap is large enough.
  std::int64_t take_anywhere(std::uint64_t bytes, std::uint64_t limit);
  // Gives back the block at `offset`; returns its rounded size, 0 if none lives there.
  std::uint64_t give_back(std::uint64_t offset);
  // Returns the pages that lie wholly in [offset, offset + bytes) to the system.
  void return_pages(std::uint64_t offset, std::uint64_t bytes);
  // Returns all pages on which no block lives, as far up as any ever did.
  void return_dead_pages();
  // Of those pages that lie wholly in [offset, offset + bytes), how many are resident,
  // as a part of all; 1 where there are none, or it cannot be told.
  double resident_part(std::uint64_t offset, std::uint64_t bytes) const;

  // Returns to the system the pages that no block has used in the last `age` steps.
  // Called once at each step boundary; returns how many bytes went.
  std::uint64_t release_cold(std::uint32_t age);

  bool contains(const void* pointer) const {
    return static_cast<const char*>(pointer) - base_ < static_cast<std::ptrdiff_t>(size_) &&
           pointer >= base_;
  }
  void* address(std::uint64_t offset) const { return base_ + offset; }
  std::uint64_t offset_of(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const char*>(pointer) - base_);
  }
  std::uint64_t size() const { return size_; }
  std::size_t live_blocks() const { return live_.size(); }
  std::uint64_t live_bytes() const { return live_bytes_; }
  // One past the highest byte that any block ever had.
  std::uint64_t top() const { return top_; }

 private:
  void note_use(std::uint64_t begin, std::uint64_t end);

  char* base_;
  std::uint64_t size_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t top_ = 0;
  std::uint32_t now_ = 1;  // steps so far, from 1
  // Per 2 MiB: the last step in which a block was placed there, 0 for pages that the
  // system has (never touched, or returned).
  std::vector<std::uint32_t> last_use_;
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::map<std::uint64_t, std::uint64_t> live_{&pool_};  // start -> end, disjoint
};

}  // namespace memplan
