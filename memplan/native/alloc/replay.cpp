#include "alloc/replay.h"

#include <algorithm>
#include <new>
#include <utility>

namespace memplan {
namespace {

// How many entries ahead of the last match, and behind it, a request may be matched:
// threads that allocate side by side change places by a few.
constexpr std::size_t kWindow = 64;
constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);

}  // namespace

Replay::Replay(std::vector<Request> requests, std::vector<std::size_t> starts,
               std::size_t loop_start, std::uint64_t arena_bytes)
    : requests_(std::move(requests)),
      starts_(std::move(starts)),
      loop_start_(loop_start),
      arena_(arena_bytes),
      used_(requests_.size(), false) {
  starts_.push_back(requests_.size());
  enter(0);
}

void Replay::enter(std::size_t step) {
  step_ = step;
  looped_ = step >= loop_start_;
  cursor_ = reach_ = starts_[step];
  std::fill(used_.begin() + static_cast<std::ptrdiff_t>(starts_[step]),
            used_.begin() + static_cast<std::ptrdiff_t>(starts_[step + 1]), false);
}

bool Replay::next_step() {
  std::lock_guard lock(mutex_);
  const bool before = looped_;
  const std::size_t next = step_ + 1;
  enter(next + 1 < starts_.size() ? next : loop_start_);
  return looped_ && !before;
}

std::size_t Replay::match(std::uint64_t bytes) {
  const std::size_t end = std::min(starts_[step_ + 1], reach_ + kWindow);
  for (std::size_t i = cursor_; i < end; ++i) {
    if (used_[i] || requests_[i].size != bytes) continue;
    used_[i] = true;
    reach_ = std::max(reach_, i + 1);
    // Entries the program has passed by without asking are given up.
    if (reach_ > kWindow) cursor_ = std::max(cursor_, reach_ - kWindow);
    while (cursor_ < reach_ && used_[cursor_]) ++cursor_;
    return i;
  }
  return kNoMatch;
}

void* Replay::allocate(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Counts& counts = looped_ ? hot_ : warmup_;
  ++counts.requests;
  const std::size_t entry = match(bytes);
  if (entry != kNoMatch) {
    const std::int64_t offset = requests_[entry].offset;
    if (offset < 0) {
      ++counts.unplanned;
      return nullptr;
    }
    if (arena_.take(static_cast<std::uint64_t>(offset), bytes)) {
      ++counts.planned;
      return arena_.address(static_cast<std::uint64_t>(offset));
    }
    ++counts.conflicts;
  }
  // In the warm-up a stranger may be there to stay, and would stand in the way of
  // every step to come.
  if (looped_) {
    const std::int64_t offset = arena_.take_anywhere(bytes);
    if (offset >= 0) {
      ++counts.online;
      counts.online_bytes += bytes;
      return arena_.address(static_cast<std::uint64_t>(offset));
    }
  }
  ++counts.fallback;
  counts.fallback_bytes += bytes;
  return nullptr;
}

void Replay::release(void* pointer) {
  std::lock_guard lock(mutex_);
  arena_.give_back(arena_.offset_of(pointer));
}

std::size_t Replay::live_blocks() {
  std::lock_guard lock(mutex_);
  return arena_.live_blocks();
}

std::uint64_t Replay::live_bytes() {
  std::lock_guard lock(mutex_);
  return arena_.live_bytes();
}

Counts Replay::warmup_counts() {
  std::lock_guard lock(mutex_);
  return warmup_;
}

Counts Replay::hot_counts() {
  std::lock_guard lock(mutex_);
  return hot_;
}

void Replay::forget_lock() { new (&mutex_) std::mutex; }

}  // namespace memplan
