// What noting sites takes of a program's time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "alloc/journal.h"

namespace memplan {

// Of something done often: how often, and what one took, by a few that are timed. Any
// thread.
class SampledCost {
 public:
  // Whether this one is to be timed, from now to `timed`.
  bool begins() { return count_.fetch_add(1, std::memory_order_relaxed) % kEvery == 0; }
  void timed(std::int64_t begin_ns) {
    const std::uint64_t taken = taken_.fetch_add(1, std::memory_order_relaxed);
    samples_[taken % kSamples].store(now_ns() - begin_ns, std::memory_order_relaxed);
  }
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  // The mean of those timed, but for the tenth that took longest: others on the machine
  // stretch a few. 0 for none.
  std::int64_t mean_ns() const {
    std::array<std::int64_t, kSamples> samples;
    for (std::size_t i = 0; i < kSamples; ++i) samples[i] = samples_[i].load();
    const std::uint64_t taken = taken_.load();
    const auto many = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(taken, kSamples));
    const auto begin = samples.begin();
    std::sort(begin, begin + many);
    const std::ptrdiff_t counted = many - many / 10;
    if (counted == 0) return 0;
    return std::accumulate(begin, begin + counted, std::int64_t{0}) / counted;
  }
  void forget() {
    count_ = 0;
    taken_ = 0;
  }

 private:
  static constexpr std::uint64_t kEvery = 31;  // prime: steps have periods, too
  static constexpr std::size_t kSamples = 255;

  std::atomic<std::uint64_t> count_ = 0;
  std::atomic<std::uint64_t> taken_ = 0;
  std::array<std::atomic<std::int64_t>, kSamples> samples_ = {};
};

}  // namespace memplan
