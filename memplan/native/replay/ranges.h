// Which byte ranges of an arena are in use. It knows no addresses and touches no
// memory: offsets are in bytes from the arena's start.
//
// Not thread-safe: the owner holds a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <set>
#include <utility>

namespace memplan {

// Whole pages, from the system and back to it, for a pool to take its chunks from: memory
// for records that are kept while a program runs. In the C library's heap they would lie
// between the program's blocks, and keep the heap from shrinking when those are freed.
// It lives for ever.
std::pmr::memory_resource* own_pages();

// The next multiple of `unit`, a power of two.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) & ~(unit - 1);
}

class Ranges {
 public:
  using Map = std::pmr::map<std::uint64_t, std::uint64_t>;

  // An arena of `size` bytes, at most 2^62. It, and the bytes of each range, are rounded
  // up to multiples of `granularity`, a power of two.
  Ranges(std::uint64_t size, std::uint64_t granularity)
      : granularity_(granularity), size_(round_up(size, granularity)) {}

  // Takes [offset, offset + bytes) if it lies in the arena and overlaps no range in
  // use. No bytes are never taken.
  bool take(std::uint64_t offset, std::uint64_t bytes);
  // Best fit below `limit`: the smallest hole that holds `bytes`, the lowest among
  // equals, and there the low end, or the high one. Returns the offset, or -1 when no hole
  // is large enough.
  std::int64_t take_anywhere(std::uint64_t bytes, std::uint64_t limit, bool high = false);
  // The lowest fit from `floor` on, or -1.
  std::int64_t take_above(std::uint64_t bytes, std::uint64_t floor);
  // Gives back the range at `offset`; returns its rounded bytes, 0 if none begins there.
  std::uint64_t give_back(std::uint64_t offset);

  std::uint64_t size() const { return size_; }
  std::uint64_t bytes_in_use() const { return in_use_; }
  // Start -> end of each range in use; disjoint.
  const Map& used() const { return used_; }

 private:
  using Hole = std::pair<std::uint64_t, std::uint64_t>;  // its bytes, its start

  void insert(Map::const_iterator above, std::uint64_t begin, std::uint64_t end);
  void index_holes();
  void add_hole(std::uint64_t begin, std::uint64_t end) {
    if (begin < end) holes_.emplace(end - begin, begin);
  }
  // The hole that begins below `limit` and ends above it, as far as the limit.
  Hole hole_at(std::uint64_t limit) const;

  std::uint64_t granularity_;
  std::uint64_t size_;
  std::uint64_t in_use_ = 0;
  std::pmr::unsynchronized_pool_resource pool_{own_pages()};
  Map used_{&pool_};
  // What lies between the ranges in use, the smallest first: kept only while best fits
  // are asked for, since most programs have all their blocks where planned.
  std::pmr::set<Hole> holes_{&pool_};
  std::uint32_t index_for_ = 0;  // changes for which it is kept yet; 0: it is not there
};

}  // namespace memplan
