#include "cuda/matcher.h"

#include <algorithm>
#include <utility>

namespace memplan::cuda {
namespace {

// How far ahead of the last match, and behind it, a request may be matched.
constexpr std::size_t kWindow = 64;

}  // namespace

Matcher::Matcher(std::vector<Entry> entries, std::vector<std::size_t> starts,
                 std::size_t loop_start)
    : entries_(std::move(entries)),
      starts_(std::move(starts)),
      loop_start_(loop_start),
      used_(entries_.size(), false) {
  starts_.push_back(entries_.size());
  enter(0);
}

void Matcher::enter(std::size_t step) {
  step_ = step;
  cursor_ = reach_ = starts_[step];
  std::fill(used_.begin() + static_cast<std::ptrdiff_t>(starts_[step]),
            used_.begin() + static_cast<std::ptrdiff_t>(starts_[step + 1]), false);
}

void Matcher::next_step() {
  const std::size_t next = step_ + 1;
  enter(next + 1 < starts_.size() ? next : loop_start_);
}

std::optional<std::int64_t> Matcher::match(std::uint64_t size) {
  const std::size_t end = std::min(starts_[step_ + 1], reach_ + kWindow);
  for (std::size_t i = cursor_; i < end; ++i) {
    if (used_[i] || entries_[i].size != size) continue;
    used_[i] = true;
    reach_ = std::max(reach_, i + 1);
    // Entries the program has passed by without asking are given up.
    if (reach_ > kWindow) cursor_ = std::max(cursor_, reach_ - kWindow);
    while (cursor_ < reach_ && used_[cursor_]) ++cursor_;
    return entries_[i].offset;
  }
  return std::nullopt;
}

}  // namespace memplan::cuda
