// What one loop nest takes, of any extents and with the window's loops anywhere.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "nest/optimum_problem.h"
#include "nest/whole_pricing.h"

namespace memplan::nest::whole {

using optimum::kAxes;
using optimum::kFw;
using optimum::kX;
using optimum::kY;
using optimum::Loop;

/// Energies of the nests of one problem, by the counts of memplan/blocking/nest, with
/// the memories that take the least.
class Cost {
 public:
  /// Keeps the problem, whose space does not matter.
  explicit Cost(const Problem& problem);

  std::int64_t size(int dim) const { return size_[dim]; }
  std::int64_t base(int dim) const { return base_[dim]; }
  /// Whether a stripe of the input may lie between two loops along `dim`, so that they
  /// are not one.
  bool striped(int dim) const {
    return dim <= kY && size_[kFw + dim - kX] > problem_.layer.stride[dim - kX];
  }

  /// pJ of one group. loops: innermost first, of X Y C K B Fw Fh, at most kMostLoops;
  /// extents ascend within a dimension and end with its size, multiples of the
  /// datapath's but for that. Where it is more than `limit`, what comes back may be
  /// less than it is, but not less than `limit`.
  double operator()(std::span<const Loop> loops, double limit) const;

 private:
  struct Walk;

  Problem problem_;
  Pricing pricing_;
  std::array<std::int64_t, kAxes> size_{}, base_{};
};

}  // namespace memplan::nest::whole
