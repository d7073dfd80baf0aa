// Events kept in memory while a plan is served, for planning anew.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "alloc/journal.h"

namespace memplan {

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

}  // namespace memplan
