// What the allocators keep while a plan is served: interruptions, a log of events, and when
// steps began that no mark told of.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "alloc/journal.h"

namespace memplan {

// Planning that is interrupted: once for each time that was not resumed yet.
class Interruptions {
 public:
  void add() { count_.fetch_add(1); }
  // False if there is none.
  bool remove() {
    int now = count_.load();
    while (now > 0 && !count_.compare_exchange_weak(now, now - 1)) {
    }
    return now > 0;
  }
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  // For others to heed.
  const std::atomic<int>* count() const { return &count_; }

 private:
  std::atomic<int> count_ = 0;
};

// Events, for planning anew.
class EventLog {
 public:
  // More than this and the log closes itself: a program that long has no step.
  static constexpr std::size_t kMostEvents = 1'000'000;

  void open() {
    std::lock_guard lock(mutex_);
    events_.clear();
    open_ = true;
  }
  bool is_open() const { return open_.load(std::memory_order_relaxed); }
  void append(const Event& event) {
    std::lock_guard lock(mutex_);
    if (!open_) return;
    events_.push_back(event);
    if (events_.size() >= kMostEvents) open_ = false;
  }
  // Closes it.
  std::vector<Event> take() {
    std::lock_guard lock(mutex_);
    open_ = false;
    return std::exchange(events_, {});
  }
  // See Replay::lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::atomic<bool> open_ = false;
  std::vector<Event> events_;
};

// Monotonic time, and page faults and CPU time of all threads of the process so far.
struct Turn {
  std::int64_t time_ns;
  std::int64_t page_faults;
  std::int64_t cpu_ns;
};
// If one began now.
inline Turn turn_now() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return (std::int64_t{time.tv_sec} * 1'000'000 + time.tv_usec) * 1'000;
  };
  return {now_ns(), usage.ru_minflt, ns(usage.ru_utime) + ns(usage.ru_stime)};
}

// Any thread, at any time. Of very many, the later ones are kept.
class Turns {
 public:
  // A step begins; how many did so far, this one included.
  std::uint64_t note() {
    const Turn turn = turn_now();
    std::lock_guard lock(mutex_);
    if (turns_.size() == kMost) turns_.pop_front();
    turns_.push_back(turn);
    return ++count_;
  }
  void clear() {
    std::lock_guard lock(mutex_);
    turns_.clear();
    count_ = 0;
  }
  std::uint64_t count() {
    std::lock_guard lock(mutex_);
    return count_;
  }
  std::vector<Turn> kept() {
    std::lock_guard lock(mutex_);
    return {turns_.begin(), turns_.end()};
  }
  // See Replay::lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 17;

  std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::deque<Turn> turns_;
};

}  // namespace memplan
