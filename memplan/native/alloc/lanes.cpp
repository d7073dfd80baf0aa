#include "alloc/lanes.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace memplan {

Lanes::Hold::~Hold() {
  pid_t mine = thread;
  if (lane != nullptr) lane->owner.compare_exchange_strong(mine, 0);
}

Lanes::Hold& Lanes::hold() {
  thread_local Hold the_hold;
  return the_hold;
}

Lanes::Lanes(const std::vector<Replay*>& replays) {
  for (Replay* replay : replays) lanes_.emplace_back(replay);
}

void Lanes::next_step() {
  Hold& own = hold();
  if (own.thread == 0) own.thread = static_cast<pid_t>(syscall(SYS_gettid));
  own.of = this;
  own.lane = acquire(own.thread);
  if (own.lane != nullptr) own.lane->replay->next_step();
}

Lanes::Lane* Lanes::acquire(pid_t thread) {
  std::lock_guard lock(mutex_);
  Lane* chosen = nullptr;
  for (Lane& lane : lanes_) {
    const pid_t owner = lane.owner.load();
    if (owner == thread) {
      chosen = &lane;
      break;
    }
    const bool taken = owner != 0 && lane.fresh.load();
    if (chosen == nullptr && !taken && lane.replay->live_blocks() == 0) chosen = &lane;
  }
  if (chosen == nullptr) return nullptr;
  chosen->fresh.store(true);
  chosen->owner.store(thread);
  return chosen;
}

Replay* Lanes::serving(std::uint64_t bytes) {
  const Hold& own = hold();
  if (own.of != this) {
    without_step_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  // Should another thread take the lane at this moment, both are served from it: that
  // is against the plan, not against the rule that live blocks do not overlap.
  if (own.lane != nullptr && own.lane->owner.load() == own.thread) {
    own.lane->fresh.store(false, std::memory_order_relaxed);
    return own.lane->replay;
  }
  without_lane_.fetch_add(1, std::memory_order_relaxed);
  bytes_without_lane_.fetch_add(bytes, std::memory_order_relaxed);
  return nullptr;
}

Counts Lanes::outside() const {
  Counts counts;
  counts.unplanned = without_step_.load();
  counts.fallback = without_lane_.load();
  counts.fallback_bytes = bytes_without_lane_.load();
  counts.requests = counts.unplanned + counts.fallback;
  return counts;
}

}  // namespace memplan
