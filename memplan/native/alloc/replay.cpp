#include "alloc/replay.h"

#include <utility>

namespace memplan {
namespace {

constexpr double kUnknown = -1.0;  // in `touched_`
// Steps whose counts are kept for whoever asks; those after them are not.
constexpr std::size_t kMostSteps = 4096;
// Blocks from this size on are worth a look at their pages.
constexpr std::uint64_t kLarge = 1 << 20;
// Sparse blocks return their pages in one step of so many: what a longer step touched
// does not stay for good, and most steps find their pages in place.
constexpr std::size_t kSparseSteps = 4;

void add(Counts& sum, const Counts& one) {
  sum.requests += one.requests;
  sum.planned += one.planned;
  sum.unplanned += one.unplanned;
  sum.conflicts += one.conflicts;
  sum.online += one.online;
  sum.fallback += one.fallback;
  sum.online_bytes += one.online_bytes;
  sum.fallback_bytes += one.fallback_bytes;
}

}  // namespace

Replay::Replay(Table table, std::uint64_t reserve, std::uint32_t cold)
    : matcher_(std::move(table)),
      arena_(reserve),
      cold_(cold),
      touched_(matcher_.table().requests.size(), kUnknown) {}

void* Replay::allocate(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  ++step_.requests;
  const std::size_t entry = matcher_.match(bytes);
  if (entry != Matcher::kNoMatch) {
    const std::int64_t offset = matcher_.table().requests[entry].offset;
    if (offset < 0) {
      ++step_.unplanned;
      return nullptr;
    }
    if (arena_.take(static_cast<std::uint64_t>(offset), bytes)) {
      ++step_.planned;
      follow_pages(entry, static_cast<std::uint64_t>(offset), bytes);
      return arena_.address(static_cast<std::uint64_t>(offset));
    }
    ++step_.conflicts;
  }
  return place_online(bytes);
}

void* Replay::place_online(std::uint64_t bytes) {
  if (matcher_.outgrown() && !returning_) {
    // Where this step's blocks come to lie is anyone's guess: nothing else may stay.
    arena_.return_dead_pages();
    returning_ = true;
  }
  // In the warm-up a stranger may be there to stay, and would stand in the way of
  // every step to come.
  if (matcher_.looped()) {
    const std::int64_t offset = arena_.take_anywhere(bytes, matcher_.table().online_bytes);
    if (offset >= 0) {
      ++step_.online;
      step_.online_bytes += bytes;
      return arena_.address(static_cast<std::uint64_t>(offset));
    }
  }
  ++step_.fallback;
  step_.fallback_bytes += bytes;
  return nullptr;
}

std::uint64_t Replay::release(void* pointer) {
  std::lock_guard lock(mutex_);
  const std::uint64_t offset = arena_.offset_of(pointer);
  const std::uint64_t bytes = arena_.give_back(offset);
  if (bytes < kLarge) return bytes;
  bool goes = returning_;
  if (const auto block = followed_.find(offset); block != followed_.end()) {
    const std::size_t entry = block->second;
    if (unsettled_ && touched_[entry] == kUnknown) {
      touched_[entry] = arena_.resident_part(offset, bytes);
    }
    goes = goes || (matcher_.table().requests[entry].sparse &&
                    steps_ % kSparseSteps == 0);
    followed_.erase(block);
  }
  if (goes) arena_.return_pages(offset, bytes);
  return bytes;
}

// While unsettled, a large block's pages are made new the first time that it is made in
// its place: those that are resident when it is freed, it has touched.
void Replay::follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes < kLarge || !matcher_.looped()) return;
  const bool unknown = unsettled_ && touched_[entry] == kUnknown;
  if (unknown) arena_.return_pages(offset, bytes);
  if (unknown || matcher_.table().requests[entry].sparse) followed_[offset] = entry;
}

bool Replay::next_step() {
  std::lock_guard lock(mutex_);
  const bool before = matcher_.looped();
  add(before ? hot_ : warmup_, step_);
  if (before && ended_.size() < kMostSteps) ended_.push_back({matcher_.step(), step_});
  step_ = {};
  ++steps_;
  matcher_.next_step();
  // A warm-up is served to its end.
  if (next_table_ && matcher_.looped()) {
    matcher_.adopt(std::move(*next_table_));
    next_table_.reset();
    touched_.assign(matcher_.table().requests.size(), kUnknown);
    followed_.clear();  // of the table before
    returning_ = true;
  }
  if (returning_) arena_.return_dead_pages();
  returning_ = unsettled_;
  if (cold_ != 0) returned_ += arena_.release_cold(cold_);
  return matcher_.looped() && !before;
}

void Replay::unsettle(bool unsettled) {
  std::lock_guard lock(mutex_);
  unsettled_ = unsettled;
  if (unsettled) returning_ = true;
}

void Replay::adopt(Table table) {
  std::lock_guard lock(mutex_);
  next_table_ = std::move(table);
}

std::uint64_t Replay::arena_bytes() {
  std::lock_guard lock(mutex_);
  return matcher_.table().arena_bytes;
}

std::uint64_t Replay::top() {
  std::lock_guard lock(mutex_);
  return arena_.top();
}

std::uint64_t Replay::returned_bytes() {
  std::lock_guard lock(mutex_);
  return returned_;
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
  Counts sum = warmup_;
  if (!matcher_.looped()) add(sum, step_);
  return sum;
}

Counts Replay::hot_counts() {
  std::lock_guard lock(mutex_);
  Counts sum = hot_;
  if (matcher_.looped()) add(sum, step_);
  return sum;
}

std::vector<StepCounts> Replay::take_steps() {
  std::lock_guard lock(mutex_);
  return std::exchange(ended_, {});
}

std::vector<std::uint64_t> Replay::largest() {
  std::lock_guard lock(mutex_);
  return matcher_.largest();
}

std::vector<double> Replay::touched() {
  std::lock_guard lock(mutex_);
  return touched_;
}

}  // namespace memplan
