// A plan for threads that make steps side by side: each has its own sequence of
// requests, and while it is in a step an arena of its own, a lane.
//
// There are only so many lanes. A thread takes one when it begins a step, and keeps it
// for its next steps; one in which nothing lives goes to whoever needs it first. A
// thread that finds none free goes without until its next step.
#pragma once

#include <sys/types.h>

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
  explicit Lanes(const std::vector<Replay*>& replays);

  // The calling thread begins its next step.
  void next_step();
  // The lane that serves a request of the calling thread; null if it is in no step, or
  // has none. Then the request is counted here.
  Replay* serving(std::uint64_t bytes);

  // Requests that no lane was there for.
  Counts outside() const;

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
    ~Hold();
  };
  static Hold& hold();
  Lane* acquire(pid_t thread);

  std::mutex mutex_;  // of taking lanes
  std::deque<Lane> lanes_;
  std::atomic<std::uint64_t> without_step_ = 0;
  std::atomic<std::uint64_t> without_lane_ = 0;
  std::atomic<std::uint64_t> bytes_without_lane_ = 0;
};

}  // namespace memplan
