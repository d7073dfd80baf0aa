#include "replay/ranges.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <new>

namespace memplan {
namespace {

// The index of holes is dropped after this many changes without a best fit. Building it
// again takes as long as some hundred changes of it.
constexpr std::uint32_t kPatience = 4096;

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

bool Ranges::take(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes - 1 >= size_) return false;  // 0 bytes, or so many that rounding might wrap
  const std::uint64_t want = round_up(bytes, granularity_);
  if (offset > size_ - want) return false;
  const std::uint64_t end = offset + want;
  const auto above = used_.lower_bound(offset);
  if (above != used_.end() && above->first < end) return false;
  if (above != used_.begin() && std::prev(above)->second > offset) return false;
  insert(above, offset, end);
  return true;
}

// [begin, end) is free, and `above` the range that follows it.
void Ranges::insert(Map::const_iterator above, std::uint64_t begin, std::uint64_t end) {
  if (index_for_ > 0) {
    const std::uint64_t low = above == used_.begin() ? 0 : std::prev(above)->second;
    const std::uint64_t high = above == used_.end() ? size_ : above->first;
    holes_.erase({high - low, low});
    add_hole(low, begin);
    add_hole(end, high);
    if (--index_for_ == 0) holes_.clear();
  }
  used_.emplace_hint(above, begin, end);
  in_use_ += end - begin;
}

void Ranges::index_holes() {
  if (index_for_ == 0) {
    std::uint64_t top = 0;
    for (const auto& [start, end] : used_) {
      add_hole(top, start);
      top = end;
    }
    add_hole(top, size_);
  }
  index_for_ = kPatience;
}

Ranges::Hole Ranges::hole_at(std::uint64_t limit) const {
  const auto above = used_.lower_bound(limit);
  const std::uint64_t begin = above == used_.begin() ? 0 : std::prev(above)->second;
  const std::uint64_t end = above == used_.end() ? size_ : above->first;
  if (begin >= limit || end <= limit) return {0, 0};
  return {limit - begin, begin};
}

std::int64_t Ranges::take_anywhere(std::uint64_t bytes, std::uint64_t limit, bool high) {
  if (bytes - 1 >= size_) return -1;
  const std::uint64_t want = round_up(bytes, granularity_);
  limit = std::min(limit, size_);
  index_holes();
  auto hole = holes_.lower_bound({want, 0});
  while (hole != holes_.end() && hole->first + hole->second > limit) ++hole;
  const Hole cut = hole_at(limit);
  const bool cut_fits = cut.first >= want;
  if (hole == holes_.end() && !cut_fits) return -1;
  const bool take_cut = cut_fits && (hole == holes_.end() || cut < *hole);
  const Hole chosen = take_cut ? cut : *hole;
  const std::uint64_t begin = chosen.second + (high ? chosen.first - want : 0);
  insert(used_.lower_bound(begin), begin, begin + want);
  return static_cast<std::int64_t>(begin);
}

std::int64_t Ranges::take_above(std::uint64_t bytes, std::uint64_t floor) {
  if (bytes - 1 >= size_) return -1;
  const std::uint64_t want = round_up(bytes, granularity_);
  auto above = used_.lower_bound(floor);
  std::uint64_t begin = round_up(floor, granularity_);
  if (above != used_.begin()) begin = std::max(begin, std::prev(above)->second);
  for (; above != used_.end() && above->first < begin + want; ++above) {
    begin = above->second;
  }
  if (begin > size_ || want > size_ - begin) return -1;
  insert(above, begin, begin + want);
  return static_cast<std::int64_t>(begin);
}

std::uint64_t Ranges::give_back(std::uint64_t offset) {
  const auto range = used_.find(offset);
  if (range == used_.end()) return 0;
  const auto [begin, end] = *range;
  in_use_ -= end - begin;
  const auto above = used_.erase(range);
  if (index_for_ > 0) {
    const std::uint64_t low = above == used_.begin() ? 0 : std::prev(above)->second;
    const std::uint64_t high = above == used_.end() ? size_ : above->first;
    if (low < begin) holes_.erase({begin - low, low});
    if (end < high) holes_.erase({high - end, end});
    add_hole(low, high);
    if (--index_for_ == 0) holes_.clear();
  }
  return end - begin;
}

}  // namespace memplan
