// What the loops inside a tile cost at least, however the tensors are kept so far.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nest/optimum_tiles.h"

namespace memplan::nest::optimum {

using Codes = std::array<std::int32_t, kTensors>;

/// Prices at which bounds are worked out, for each tensor.
///
/// The least cost of what lies inside a tile is a concave function of the prices at
/// which the three tensors are served there: a minimum of linear ones. Between points
/// that are too low or right, interpolation is therefore too low or right as well.
class Grid {
 public:
  /// At most `most` points for each tensor: all prices where these are few, and
  /// otherwise a choice that is even in the logarithm.
  Grid(const Tiles& tiles, int most);

  struct Place {
    std::int32_t at;  // points before and after: at, at + 1
    float part;       // of the way to the second
  };

  int size(int tensor) const { return static_cast<int>(points_[tensor].size()); }
  float point(int tensor, int i) const { return points_[tensor][i]; }
  Place place(int tensor, int code) const { return places_[tensor][code]; }
  /// As it was made with.
  int most() const { return most_; }
  /// Whether every price is a point.
  bool exact() const { return exact_; }
  /// Values of one bound over all tiles.
  std::size_t values(const Tiles& tiles) const;
  /// The first point that a tile's tensor can be served at.
  int lowest(const Tile& tile, int tensor) const;

 private:
  std::array<std::vector<float>, kTensors> points_;
  std::array<std::vector<Place>, kTensors> places_;
  int most_;
  bool exact_ = true;
};

/// The grid's values at every tile, from the datapath's outwards. Each memory is taken
/// to have all of its pool to itself.
class Bound {
 public:
  /// Stops early when `stop`, which any thread may call, returns true; then `complete`
  /// is false, and the bound is of no use.
  Bound(const Tiles& tiles, const Grid& grid, int threads,
        const std::function<bool()>& stop);

  bool complete() const { return complete_; }

  /// At least what is inside `tile` costs, with tensors served at these codes.
  double operator()(std::int32_t tile, int kind, const Codes& codes) const;

 private:
  struct Box {
    std::size_t begin;
    std::array<std::int32_t, kTensors> low, size;
    std::size_t volume() const {
      return static_cast<std::size_t>(size[0]) * size[1] * size[2];
    }
  };
  class Filler;

  const Grid* grid_;
  std::vector<Box> boxes_;
  std::unique_ptr<float[]> values_;  // not set before they are worked out
  double safety_;
  bool complete_ = true;
};

}  // namespace memplan::nest::optimum
