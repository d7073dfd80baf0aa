// One reserved range of addresses and the blocks alive in it.
//
// Not thread-safe: the owner holds a lock. Offsets are in bytes from the start of
// the arena, sizes are rounded up to 64 bytes on the way in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>

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
  // Best fit: the smallest gap that holds `bytes`, the lowest among equals. Returns
  // its offset, or -1 when no gap is large enough.
  std::int64_t take_anywhere(std::uint64_t bytes);
  // Gives back the block at `offset`; false if none lives there.
  bool give_back(std::uint64_t offset);

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

 private:
  char* base_;
  std::uint64_t size_;
  std::uint64_t live_bytes_ = 0;
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::map<std::uint64_t, std::uint64_t> live_{&pool_};  // start -> end, disjoint
};

}  // namespace memplan
