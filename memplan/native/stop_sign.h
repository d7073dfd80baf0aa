// How long-running kernels learn that they are to end.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace memplan {

/// When to leave off: at a moment, or when somebody asked says so.
class StopSign {
 public:
  using Clock = std::chrono::steady_clock;
  /// ask: called now and then, by the thread alone that made the sign.
  StopSign(Clock::time_point deadline, std::function<bool()> ask)
      : deadline_(deadline), ask_(std::move(ask)) {}

  bool up() const {
    if (raised_.load(std::memory_order_relaxed)) return true;
    const auto now = Clock::now();
    if (now >= deadline_) return true;
    if (std::this_thread::get_id() != owner_ || now < next_) return false;
    next_ = now + kPause;
    if (ask_()) raised_.store(true, std::memory_order_relaxed);
    return raised_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr std::chrono::milliseconds kPause{50};

  const Clock::time_point deadline_;
  const std::function<bool()> ask_;
  const std::thread::id owner_ = std::this_thread::get_id();
  mutable std::atomic<bool> raised_ = false;
  mutable Clock::time_point next_ = Clock::now() + kPause;  // the owner's alone
};

}  // namespace memplan
