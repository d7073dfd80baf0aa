// Partial loop nests, from the outermost loop inwards, of which only the best are kept.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "nest/optimum_bound.h"
#include "nest/optimum_tiles.h"

namespace memplan::nest::optimum {

inline constexpr int kMostPools = 4;

/// A step of a complete nest, the tensors' codes inside of it, and whether the input's
/// inner tile slides along it.
struct Move {
  std::int32_t step;
  Codes codes;
  bool slides;
};

/// How a pass ended. improved: it found a nest, of `energy` and `moves`, outermost
/// first. lower_bound: no nest takes less than this or the incumbent. stopped: before
/// the end, and nothing more is known.
struct PassResult {
  bool improved = false, stopped = false;
  double energy = 0, lower_bound = 0;
  std::vector<Move> moves;
  std::int64_t labels = 0;
};

/// All partial nests that may lead to less energy than an incumbent's.
///
/// A label stands for loops outside of a tile, with the tensors' memories chosen: its
/// energy so far, the price each tensor is served at, and the bytes taken of each pool.
/// Of two labels for one tile, the one that is no better in any of these is dropped;
/// so is one from which, by the bounds, nothing better than the incumbent follows.
class Search {
 public:
  using Stop = std::function<bool()>;

  /// threads: at least one. Throws std::invalid_argument beyond kMostPools.
  Search(const Tiles& tiles, const Bound& bound, int threads);

  /// One pass over all tiles with at most `width` labels for each, the most promising
  /// (0: all there are). incumbent: energy that is to be improved on. Stops beyond
  /// `most` labels in all.
  PassResult pass(double incumbent, std::size_t width, std::size_t most,
                  const Stop& stop) const;

  /// At least what any nest takes.
  double root_bound() const;

 private:
  template <int kPools>
  class Pass;

  const Tiles& tiles_;
  const Bound& bound_;
  int threads_;
};

}  // namespace memplan::nest::optimum
