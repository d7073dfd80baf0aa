#include "cuda/ranges.h"

#include <iterator>
#include <limits>

namespace memplan::cuda {

bool Ranges::take(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t end = offset + bytes;
  if (end > size_ || end < offset) return false;
  const auto above = used_.lower_bound(offset);
  if (above != used_.end() && above->first < end) return false;
  if (above != used_.begin() && std::prev(above)->second > offset) return false;
  used_.emplace_hint(above, offset, end);
  return true;
}

std::int64_t Ranges::take_anywhere(std::uint64_t bytes) {
  std::uint64_t best_gap = std::numeric_limits<std::uint64_t>::max();
  std::int64_t best = -1;
  std::uint64_t top = 0;
  const auto consider = [&](std::uint64_t until) {
    const std::uint64_t gap = until - top;
    if (gap >= bytes && gap < best_gap) {
      best_gap = gap;
      best = static_cast<std::int64_t>(top);
    }
  };
  for (const auto& [start, end] : used_) {
    consider(start);
    top = end;
  }
  consider(size_);
  if (best >= 0) used_.emplace(static_cast<std::uint64_t>(best), best + bytes);
  return best;
}

}  // namespace memplan::cuda
