// What noting sites takes of a program's time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "alloc/journal.h"

namespace memplan {

// Of something done often: how often, and what one took, by a few that are timed. Guarded
// by the GIL.
class SampledCost {
 public:
  // Whether this one is to be timed, from now to `timed`.
  bool begins() { return count_++ % kEvery == 0; }
  void timed(std::int64_t begin_ns) {
    samples_[taken_++ % samples_.size()] = now_ns() - begin_ns;
  }
  // The median's times how often: others on the machine stretch a few.
  std::int64_t total_ns() const {
    auto samples = samples_;
    const std::size_t many = std::min<std::size_t>(taken_, samples.size());
    if (many == 0) return 0;
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(many / 2);
    std::nth_element(samples.begin(), middle,
                     samples.begin() + static_cast<std::ptrdiff_t>(many));
    return *middle * static_cast<std::int64_t>(count_);
  }

 private:
  static constexpr std::uint64_t kEvery = 31;  // prime: steps have periods, too

  std::uint64_t count_ = 0;
  std::uint64_t taken_ = 0;
  std::array<std::int64_t, 255> samples_ = {};
};

}  // namespace memplan
