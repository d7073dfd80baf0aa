// Which byte ranges of an arena are in use. It never touches the memory, which is a
// device's, and knows no addresses: only offsets from the arena's start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace memplan::cuda {

constexpr std::uint64_t kGranularity = 512;  // as torch's own allocator

constexpr std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

class Ranges {
 public:
  explicit Ranges(std::uint64_t size) : size_(size) {}

  // Takes [offset, offset + bytes) if it lies in the arena and overlaps no range in
  // use; bytes is a multiple of the granularity.
  bool take(std::uint64_t offset, std::uint64_t bytes);
  // Best fit: the smallest gap that holds `bytes`, the lowest among equals. Returns
  // its offset, or -1 when no gap is large enough.
  std::int64_t take_anywhere(std::uint64_t bytes);
  void give_back(std::uint64_t offset) { used_.erase(offset); }

  std::uint64_t size() const { return size_; }
  bool empty() const { return used_.empty(); }

 private:
  std::uint64_t size_;
  std::map<std::uint64_t, std::uint64_t> used_;  // start -> end, disjoint
};

}  // namespace memplan::cuda
