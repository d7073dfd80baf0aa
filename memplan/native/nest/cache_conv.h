// The references of a blocked convolution, sent straight to a CacheSim.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "nest/cache_sim.h"
#include "nest/cache_tensors.h"
#include "require.h"

namespace memplan::nest {

struct Loop {
  int dim;
  std::int64_t extent;
};

/// A blocked convolution. loops: innermost first, over register tiles; extents are
/// cumulative and need not divide each other. The loops over C, Fw and Fh that come
/// first keep a tile's sums in registers; where they end, the sums are added to the
/// outputs, or written there if they are the first.
class BlockedConv {
 public:
  /// poll: called now and then; what it throws ends the run. All must outlive the run.
  /// Throws std::invalid_argument where the loops do not cover the layer.
  BlockedConv(const ConvTensors& tensors, std::span<const Loop> loops, CacheSim& caches,
              const std::function<void()>& poll)
      : tensors_(tensors),
        caches_(caches),
        poll_(poll),
        element_(tensors.bytes(1)),
        high_(tensors.shape().size) {
    Extents reached;
    reached.fill(1);
    reached[kX] = tensors.tile().x;
    reached[kK] = tensors.tile().k;
    for (const auto& [dim, extent] : loops) {
      require(dim >= 0 && dim < kDims, "a loop goes over no dimension");
      require(extent > reached[dim], "a loop's extent does not grow");
      require(dim != kK || extent % tensors.tile().k == 0 || extent >= high_[kK],
              "a tile of channels cuts a register tile");
      loops_.push_back({dim, reached[dim]});
      reached[dim] = extent;
    }
    for (int dim = 0; dim < kDims; ++dim) {
      require(reached[dim] >= high_[dim], "the loops do not cover the layer");
    }
    const auto reduces = [](const Step& one) {
      return one.dim == kC || one.dim == kFw || one.dim == kFh;
    };
    in_registers_ = std::ranges::find_if_not(loops_, reduces) - loops_.begin();
  }

  void run() { descend(static_cast<std::ptrdiff_t>(loops_.size())); }

 private:
  struct Step {
    int dim;
    std::int64_t step;
  };

  void descend(std::ptrdiff_t level) {
    if (level == 0) {
      multiply();
    } else {
      const auto [dim, step] = loops_[level - 1];
      const std::int64_t low = low_[dim], high = high_[dim];
      for (std::int64_t at = low; at < high; at += step) {
        low_[dim] = at;
        high_[dim] = std::min(at + step, high);
        descend(level - 1);
      }
      low_[dim] = low;
      high_[dim] = high;
    }
    if (level == in_registers_) add_to_outputs();
  }

  void multiply() {
    constexpr std::uint64_t kStepsBetweenPolls = 1 << 20;
    if (++steps_ % kStepsBetweenPolls == 0) poll_();
    const ConvShape& shape = tensors_.shape();
    caches_.run(tensors_.input(low_[kB], low_[kG], low_[kC],
                               low_[kY] * shape.stride_y + low_[kFh],
                               low_[kX] * shape.stride_x + low_[kFw]),
                high_[kX] - low_[kX], tensors_.bytes(shape.stride_x), false);
    caches_.run(tensors_.kernel(low_[kG], low_[kK], low_[kC], low_[kFh], low_[kFw]),
                high_[kK] - low_[kK], element_, false);
  }

  void add_to_outputs() {
    const bool first = low_[kC] == 0 && low_[kFw] == 0 && low_[kFh] == 0;
    const std::int64_t columns = high_[kX] - low_[kX];
    for (std::int64_t k = low_[kK]; k < high_[kK]; ++k) {
      const std::uint64_t row =
          tensors_.output(low_[kB], low_[kG], k, low_[kY], low_[kX]);
      if (!first) caches_.run(row, columns, element_, false);
      caches_.run(row, columns, element_, true);
    }
  }

  const ConvTensors& tensors_;
  CacheSim& caches_;
  const std::function<void()>& poll_;
  const std::uint64_t element_;
  std::uint64_t steps_ = 0;
  std::vector<Step> loops_;
  std::ptrdiff_t in_registers_ = 0;
  Extents low_{}, high_;  // of the current tile
};

}  // namespace memplan::nest
