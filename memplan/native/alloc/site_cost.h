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
  std::uint64_t count() const { return count_; }
  // Of those timed, and not the mean: others on the machine stretch a few. 0 for none.
  std::int64_t median_ns() const {
    auto samples = samples_;
    const std::size_t many = std::min<std::size_t>(taken_, samples.size());
    if (many == 0) return 0;
    const auto begin = samples.begin();
    const auto middle = begin + static_cast<std::ptrdiff_t>(many / 2);
    std::nth_element(begin, middle, begin + static_cast<std::ptrdiff_t>(many));
    return *middle;
  }

 private:
  static constexpr std::uint64_t kEvery = 31;  // prime: steps have periods, too

  std::uint64_t count_ = 0;
  std::uint64_t taken_ = 0;
  std::array<std::int64_t, 255> samples_ = {};
};

}  // namespace memplan
