// The tiles of a layer, the steps from one to a smaller one, and what holds them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "nest/optimum_problem.h"

namespace memplan::nest::optimum {

/// A memory that a tile may be kept in: its rank among the tensor's prices, ascending.
struct Option {
  int code, pool;
};

/// A tile, and the loops outside it.
///
/// at: index of each dimension's divisor; window: whether all of it is inside. outside:
/// how often the tile is visited. elements: each tensor's; fill: elements that pass its
/// boundary if it is kept, over all visits. options: memories it may be kept in.
/// cheapest: code below which nothing that holds this tile or a larger one costs.
struct Tile {
  std::array<std::uint8_t, kDims> at{};
  bool window = false;
  double outside = 1;
  std::array<double, kTensors> elements{}, fill{};
  std::array<std::span<const Option>, kTensors> options;
  std::array<int, kTensors> cheapest{};
};

/// A loop peeled off: `from` is the tile it walks with, `to` the one inside it.
struct Step {
  std::int32_t from, to;
  std::int8_t dim;
  bool mirrored;  // columns and rows change places in `to`
};

/// All tiles whose extents divide each other down to the datapath's.
///
/// Tiles are ordered by the number of prime factors of their volume, largest first, in
/// layers: no step leads from a tile to one of the same layer. Tile 0 is the whole
/// layer, the last one the datapath's. Where columns and rows are alike, only tiles
/// that are no higher than wide are listed.
class Tiles {
 public:
  /// Throws std::overflow_error if there are more than kMost.
  explicit Tiles(const Problem& problem);
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  static constexpr std::size_t kMost = 1 << 20;

  std::span<const Tile> tiles() const { return tiles_; }
  /// First tile of each layer, and one past the last.
  std::span<const std::int32_t> layers() const { return layers_; }
  std::span<const Step> inward(std::int32_t tile) const {
    return {out_.data() + out_begin_[tile],
            static_cast<std::size_t>(out_begin_[tile + 1] - out_begin_[tile])};
  }
  /// Indices of the steps that lead to a tile, for `step`.
  std::span<const std::int32_t> outward(std::int32_t tile) const {
    return {in_.data() + in_begin_[tile],
            static_cast<std::size_t>(in_begin_[tile + 1] - in_begin_[tile])};
  }
  const Step& step(std::int32_t index) const { return out_[index]; }

  /// pJ of each code, ascending; the last is main memory's.
  std::span<const double> prices(int tensor) const { return prices_[tensor]; }
  int main_code(int tensor) const {
    return static_cast<int>(prices_[tensor].size()) - 1;
  }
  /// Elements that the datapath moves in all.
  double demand(int tensor) const { return demand_[tensor]; }
  std::int64_t extent(int dim, int at) const {
    return divisors_[dim][at] * problem_.layer.base[dim];
  }
  bool has_window() const { return has_window_; }
  const Problem& problem() const { return problem_; }

 private:
  using Position = std::array<std::uint8_t, kDims>;

  void list_tiles();
  void list_steps();
  void list_prices();
  void fill_in(Tile& tile) const;
  double input_elements(const Tile& tile) const;
  std::int32_t index(Position at, bool window) const;
  double curve(int tensor, double bytes) const;

  Problem problem_;
  bool has_window_, mirrors_;
  double trips_ = 1;
  std::array<std::vector<std::int64_t>, kDims> divisors_;
  std::vector<Tile> tiles_;
  std::vector<std::int32_t> layers_, index_;
  std::vector<Step> out_;
  std::vector<std::int32_t> out_begin_, in_, in_begin_;
  std::array<std::vector<double>, kTensors> prices_;
  std::array<std::vector<Option>, kTensors> options_;
  std::array<double, kTensors> demand_{};
};

/// The tensors that a loop uses again, as a mask; of an absent kernel there is none.
inline unsigned reused_along(int dim, bool kernel) {
  switch (dim) {
    case kC: return 1u << kOutput;
    case kK: return 1u << kInput;
    case kF: return (1u << kInput) | (1u << kOutput);
    default: return kernel ? 1u << kKernel : 0u;
  }
}

/// Which tensor's tile is kept already, so that keeping it again is of no use: none of
/// them, or the input's, the kernel's, the output's. Never two: a loop that leaves one
/// tensor's tile alone shrinks those of the others.
enum Kind : int { kFresh, kKeptInput, kKeptKernel, kKeptOutput, kKinds };

/// The tensors that a loop along `dim` uses again and that are not kept yet, as a mask.
inline unsigned worth_keeping(int dim, int kind, bool kernel) {
  const unsigned again = reused_along(dim, kernel);
  return kind == kFresh ? again : again & ~(1u << (kind - 1));
}

/// The kind of the tile inside such a loop, where the tensors in `keep` are kept.
inline int kind_inside(int dim, int kind, unsigned keep, bool kernel) {
  if (kind != kFresh) keep |= reused_along(dim, kernel) & (1u << (kind - 1));
  // With the window the input's halo goes, so that its tile shrinks all the same.
  if (dim == kF) keep &= ~(1u << kInput);
  return keep ? std::countr_zero(keep) + 1 : kFresh;
}

}  // namespace memplan::nest::optimum
