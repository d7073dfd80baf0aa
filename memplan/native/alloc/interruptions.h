// Planning that is interrupted: once for each time that was not resumed yet.
#pragma once

#include <atomic>

namespace memplan {

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

}  // namespace memplan
