#include "alloc/arena.h"

#include <sys/mman.h>

#include <iterator>
#include <limits>
#include <new>

namespace memplan {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;

}  // namespace

Arena::Arena(std::uint64_t bytes) : size_(round_up(bytes, kAlignment)) {
  const std::uint64_t mapped = size_ + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uint64_t>(start);
  base_ = reinterpret_cast<char*>(round_up(address, kHugePage));
}

bool Arena::take(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t end = offset + round_up(bytes, kAlignment);
  if (end > size_ || end < offset) return false;
  const auto above = live_.lower_bound(offset);
  if (above != live_.end() && above->first < end) return false;
  if (above != live_.begin() && std::prev(above)->second > offset) return false;
  live_.emplace_hint(above, offset, end);
  live_bytes_ += end - offset;
  return true;
}

std::int64_t Arena::take_anywhere(std::uint64_t bytes) {
  const std::uint64_t want = round_up(bytes, kAlignment);
  std::uint64_t best_gap = std::numeric_limits<std::uint64_t>::max();
  std::int64_t best = -1;
  std::uint64_t top = 0;
  const auto consider = [&](std::uint64_t until) {
    const std::uint64_t gap = until - top;
    if (gap >= want && gap < best_gap) {
      best_gap = gap;
      best = static_cast<std::int64_t>(top);
    }
  };
  for (const auto& [start, end] : live_) {
    consider(start);
    top = end;
  }
  consider(size_);
  if (best >= 0) {
    live_.emplace(static_cast<std::uint64_t>(best), best + want);
    live_bytes_ += want;
  }
  return best;
}

bool Arena::give_back(std::uint64_t offset) {
  const auto block = live_.find(offset);
  if (block == live_.end()) return false;
  live_bytes_ -= block->second - block->first;
  live_.erase(block);
  return true;
}

}  // namespace memplan
