// The references of a blocked convolution, sent straight to a CacheSim.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "nest/cache_sim.h"
#include "nest/cache_tensors.h"

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
  /// Throws std::invalid_argument where the loops do not cover the layer.
  BlockedConv(const ConvTensors& tensors, std::span<const Loop> loops);

  /// poll: called now and then; what it throws ends the run.
  void run(CacheSim& caches, const std::function<void()>& poll);

 private:
  struct Step {
    int dim;
    std::int64_t step;
  };

  void descend(std::size_t level);
  void multiply();
  void add_to_outputs();

  ConvTensors tensors_;
  CacheSim* caches_ = nullptr;
  const std::function<void()>* poll_ = nullptr;
  std::uint64_t steps_ = 0;
  std::vector<Step> loops_;
  std::size_t in_registers_ = 0;
  Extents low_{}, high_{};  // of the current tile
};

}  // namespace memplan::nest
