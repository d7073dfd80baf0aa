// How long-running kernels learn that they are to end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace memplan {

/// When to leave off: after a while, or when somebody asked says so.
class StopSign {
 public:
  /// seconds: of that while. ask: called now and then, by the thread alone that made the
  /// sign.
  StopSign(double seconds, std::function<bool()> ask)
      : deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     Seconds(std::clamp(seconds, 0.0, 1e9)))),
        ask_(std::move(ask)) {}

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
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  static constexpr std::chrono::milliseconds kPause{50};

  const Clock::time_point deadline_;
  const std::function<bool()> ask_;
  const std::thread::id owner_ = std::this_thread::get_id();
  mutable std::atomic<bool> raised_ = false;
  mutable Clock::time_point next_ = Clock::now() + kPause;  // the owner's alone
};

}  // namespace memplan
