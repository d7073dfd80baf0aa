// A plan for threads that make steps side by side: each has its own sequence of
// requests, and while it is in a step an arena of its own, a lane.
//
// There are only so many lanes. A thread takes one when it begins a step, and keeps it
// for its next steps; one in which nothing lives goes to whoever needs it first. A
// thread that finds none free goes without until its next step.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "alloc/replay.h"

namespace memplan {

class Lanes {
 public:
  // A lane for each of `replays`, which live for ever.
  explicit Lanes(const std::vector<Replay*>& replays) {
    for (Replay* replay : replays) lanes_.emplace_back(replay);
  }

  // The calling thread begins its next step.
  void next_step() {
    Hold& own = hold();
    if (own.thread == 0) own.thread = static_cast<pid_t>(syscall(SYS_gettid));
    own.of = this;
    own.lane = acquire(own.thread);
    if (own.lane != nullptr) own.lane->replay->next_step();
  }
  // The lane that serves a request of the calling thread; null if it is in no step, or
  // has none. Then the request is counted here.
  Replay* serving(std::uint64_t bytes) {
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

  // Requests that no lane was there for.
  Counts outside() const {
    Counts counts;
    counts.unplanned = without_step_.load();
    counts.fallback = without_lane_.load();
    counts.fallback_bytes = bytes_without_lane_.load();
    counts.requests = counts.unplanned + counts.fallback;
    return counts;
  }

  // See Replay::lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Lane {
    explicit Lane(Replay* replay) : replay(replay) {}
    Replay* replay;
    std::atomic<pid_t> owner = 0;  // the thread that holds it, 0 for none
    // Its step has begun, and asked for nothing yet: the lane only looks free.
    std::atomic<bool> fresh = false;
  };
  // Of the calling thread: its lane, given back when the thread ends.
  struct Hold {
    const Lanes* of = nullptr;  // the lanes it last began a step under
    Lane* lane = nullptr;
    pid_t thread = 0;
    ~Hold() {
      pid_t mine = thread;
      if (lane != nullptr) lane->owner.compare_exchange_strong(mine, 0);
    }
  };
  static Hold& hold() {
    thread_local Hold the_hold;
    return the_hold;
  }
  Lane* acquire(pid_t thread) {
    std::lock_guard lock(mutex_);
    Lane* chosen = nullptr;
    for (Lane& lane : lanes_) {
      const pid_t owner = lane.owner.load();
      if (owner == thread) {
        chosen = &lane;
        break;
      }
      const bool taken = owner != 0 && lane.fresh.load();
      if (chosen == nullptr && !taken && lane.replay->live_blocks() == 0)
        chosen = &lane;
    }
    if (chosen == nullptr) return nullptr;
    chosen->fresh.store(true);
    chosen->owner.store(thread);
    return chosen;
  }

  std::mutex mutex_;  // of taking lanes
  std::deque<Lane> lanes_;
  std::atomic<std::uint64_t> without_step_ = 0;
  std::atomic<std::uint64_t> without_lane_ = 0;
  std::atomic<std::uint64_t> bytes_without_lane_ = 0;
};

}  // namespace memplan
