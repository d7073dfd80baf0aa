// When steps began that no mark told of, and what the process had used by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

namespace memplan {

// Monotonic time, and page faults and CPU time of all threads of the process so far.
struct Turn {
  std::int64_t time_ns;
  std::int64_t page_faults;
  std::int64_t cpu_ns;
};
// If one began now.
Turn turn_now();

// Any thread, at any time. Of very many, the later ones are kept.
class Turns {
 public:
  // A step begins; how many did so far, this one included.
  std::uint64_t note();
  void clear();
  std::uint64_t count();
  std::vector<Turn> kept();
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
