#include "replay/ranges.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace memplan {

bool Ranges::take(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes - 1 >= size_) return false;  // 0 bytes, or so many that rounding might wrap
  const std::uint64_t want = round_up(bytes, granularity_);
  if (offset > size_ - want) return false;
  const std::uint64_t end = offset + want;
  const auto above = used_.lower_bound(offset);
  if (above != used_.end() && above->first < end) return false;
  if (above != used_.begin() && std::prev(above)->second > offset) return false;
  used_.emplace_hint(above, offset, end);
  in_use_ += want;
  return true;
}

std::int64_t Ranges::take_anywhere(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes - 1 >= size_) return -1;
  const std::uint64_t want = round_up(bytes, granularity_);
  std::uint64_t smallest = std::numeric_limits<std::uint64_t>::max();
  std::int64_t best = -1;
  std::uint64_t top = 0;
  const auto consider = [&](std::uint64_t until) {
    if (until < top) return;
    const std::uint64_t hole = until - top;
    if (hole >= want && hole < smallest) {
      smallest = hole;
      best = static_cast<std::int64_t>(top);
    }
  };
  limit = std::min(limit, size_);
  for (const auto& [start, end] : used_) {
    consider(std::min(start, limit));
    top = end;
  }
  consider(limit);
  if (best >= 0) {
    const auto begin = static_cast<std::uint64_t>(best);
    used_.emplace(begin, begin + want);
    in_use_ += want;
  }
  return best;
}

std::uint64_t Ranges::give_back(std::uint64_t offset) {
  const auto range = used_.find(offset);
  if (range == used_.end()) return 0;
  const std::uint64_t bytes = range->second - range->first;
  in_use_ -= bytes;
  used_.erase(range);
  return bytes;
}

}  // namespace memplan
