#include "malloc/large.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <iterator>

namespace memplan {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMost = std::uint64_t{1} << 38;  // bytes of addresses asked for
constexpr std::uint64_t kLeast = std::uint64_t{1} << 36;
constexpr std::int64_t kStretch = 4;  // seconds

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPage - 1) & ~(kPage - 1);
}

std::int64_t now_seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec;
}

}  // namespace

LargeBlocks::LargeBlocks() {
  // Where addresses are limited (ulimit -v), the process needs them itself.
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return;
  for (std::uint64_t bytes = kMost; bytes >= kLeast && size_ == 0; bytes /= 4) {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    base_ = reinterpret_cast<std::uintptr_t>(base);
    size_ = bytes;
  }
  if (size_ != 0) add_hole(0, size_);
}

void* LargeBlocks::allocate(std::size_t bytes, bool zeroed) {
  if (bytes > size_) return nullptr;
  const std::uint64_t size = whole_pages(bytes);
  std::lock_guard lock(mutex_);
  const auto fit = by_size_.lower_bound({size, 0});
  if (fit == by_size_.end()) return nullptr;
  const std::uint64_t begin = fit->second;
  const auto hole = holes_.find(begin);
  const std::uint64_t end = hole->second;
  remove_hole(hole);
  if (begin + size < end) add_hole(begin + size, end);
  take_kept(begin, begin + size, zeroed);
  live_[begin] = begin + size;
  ++counts_.requests;
  counts_.live += size;
  counts_.most_live = std::max(counts_.most_live, counts_.live);
  most_now_ = std::max(most_now_, counts_.live);
  trim();
  return reinterpret_cast<void*>(base_ + begin);
}

void LargeBlocks::release(void* pointer) {
  std::lock_guard lock(mutex_);
  const auto block = live_.find(reinterpret_cast<std::uintptr_t>(pointer) - base_);
  if (block == live_.end()) return;
  const auto [begin, end] = *block;
  live_.erase(block);
  counts_.live -= end - begin;
  keep(begin, end);
  add_hole(begin, end);
  trim();
}

std::size_t LargeBlocks::size_of(const void* pointer) {
  std::lock_guard lock(mutex_);
  const auto block = live_.find(reinterpret_cast<std::uintptr_t>(pointer) - base_);
  return block == live_.end() ? 0 : block->second - block->first;
}

LargeCounts LargeBlocks::counts() {
  std::lock_guard lock(mutex_);
  return counts_;
}

void LargeBlocks::add_hole(std::uint64_t begin, std::uint64_t end) {
  auto after = holes_.lower_bound(begin);
  if (after != holes_.end() && after->first == end) {
    end = after->second;
    remove_hole(after);
    after = holes_.lower_bound(begin);
  }
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    if (before->second == begin) {
      begin = before->first;
      remove_hole(before);
    }
  }
  holes_[begin] = end;
  by_size_.insert({end - begin, begin});
}

void LargeBlocks::remove_hole(Bytes::iterator hole) {
  by_size_.erase({hole->second - hole->first, hole->first});
  holes_.erase(hole);
}

void LargeBlocks::take_kept(std::uint64_t begin, std::uint64_t end, bool zeroed) {
  auto range = kept_.upper_bound(begin);
  if (range != kept_.begin() && std::prev(range)->second > begin) --range;
  while (range != kept_.end() && range->first < end) {
    const auto [low, high] = *range;
    range = kept_.erase(range);
    const std::uint64_t from = std::max(low, begin), to = std::min(high, end);
    counts_.kept -= to - from;
    if (zeroed) return_pages(from, to);
    if (low < from) kept_[low] = from;
    if (to < high) range = kept_.emplace(to, high).first;
  }
}

void LargeBlocks::keep(std::uint64_t begin, std::uint64_t end) {
  kept_[begin] = end;
  counts_.kept += end - begin;
}

void LargeBlocks::return_pages(std::uint64_t begin, std::uint64_t end) {
  madvise(reinterpret_cast<void*>(base_ + begin), end - begin, MADV_DONTNEED);
  counts_.returned += end - begin;
}

void LargeBlocks::trim() {
  const std::int64_t now = now_seconds();
  if (now - stretch_begun_ >= kStretch) {
    // Of a stretch long past nothing is known but what is live.
    const bool next = now - stretch_begun_ < 2 * kStretch;
    most_before_ = next ? most_now_ : counts_.live;
    most_now_ = counts_.live;
    stretch_begun_ = now;
  }
  const std::uint64_t most = std::max(most_now_, most_before_);
  while (counts_.live + counts_.kept > most && !kept_.empty()) {
    const auto highest = std::prev(kept_.end());
    const std::uint64_t over = counts_.live + counts_.kept - most;
    const std::uint64_t low = highest->first, end = highest->second;
    const std::uint64_t begin = end - low > over ? end - over : low;
    return_pages(begin, end);
    counts_.kept -= end - begin;
    if (begin > low) {
      highest->second = begin;
    } else {
      kept_.erase(highest);
    }
  }
}

}  // namespace memplan
