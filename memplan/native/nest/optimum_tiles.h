// The tiles of a layer, the steps from one to a smaller one, and what holds them.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "nest/optimum_problem.h"

namespace memplan::nest::optimum {

/// A memory that a tile may be kept in: its rank among the tensor's prices, ascending.
struct Option {
  int code, pool;
};

/// A tile, and the loops outside it.
///
/// at: index of each dimension's extent. elements: each tensor's; fill: elements that
/// pass its boundary if it is kept, over all visits. inside: memories it may be kept in
/// where another lies outside, outermost: where none does; sliding: those that the
/// input's may slide in, likewise. cheapest: code below which nothing that holds this
/// tile or a larger one costs.
struct Tile {
  std::array<std::uint16_t, kAxes> at{};
  std::array<double, kTensors> elements{}, fill{};
  std::array<std::span<const Option>, kTensors> inside, outermost;
  std::array<std::span<const Option>, 2> sliding;
  std::array<int, kTensors> cheapest{};

  /// Memories of a tensor's tile, where it slides and lies outermost or not.
  std::span<const Option> options(int tensor, bool slides, bool last) const {
    if (slides) return sliding[last];
    return last ? outermost[tensor] : inside[tensor];
  }
};

/// The same dimension where columns and rows change places.
constexpr int mirror(int dim) {
  switch (dim) {
    case kX: return kY;
    case kY: return kX;
    case kFw: return kFh;
    case kFh: return kFw;
    default: return dim;
  }
}

/// A loop peeled off: `from` is the tile it walks with, `to` the one inside it.
struct Step {
  std::int32_t from, to;
  std::int8_t dim;
  bool mirrored;  // columns and rows change places in `to`
  bool leap;      // past other extents: only for a buffer that slides along it
};

/// Thrown by a constructor that runs out of time; no error.
struct Stopped {};

/// All tiles between the layer and what the datapath does at once.
///
/// In the space of divisors a tile's extents divide those of tiles outside it, and its
/// counts are exact. In the whole space how often a tile is visited depends on the
/// tiles around it; here it is as often as it must be at least, n / t rounded up, so
/// what a nest takes here is no more than what it takes. Of the extents with the same
/// n / t only the smallest is listed; where these are too many tiles, several are taken
/// together, as large as the smallest and visited as often as the largest of them. Steps
/// are from one extent to the next, for two along one dimension are as good as one over
/// both; but a buffer that slides is as small as the inner tile and filled as seldom as
/// the outer one, so that for these there are leaps.
///
/// Tiles are ordered by how many steps they are from the datapath's, farthest first, in
/// layers: no step leads from a tile to one of the same layer. Tile 0 is the whole
/// layer, the last one the datapath's. Where columns and rows are alike, only tiles
/// that are no higher than wide are listed.
class Tiles {
 public:
  /// Throws std::overflow_error if there are more than kMost divisors.
  ///
  /// most: tiles of the whole space, as far as there is a coarser choice. Throws
  /// Stopped soon after `stop` returns true.
  Tiles(const Problem& problem, std::size_t most, const std::function<bool()>& stop);
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

  /// The tensors whose outer tile is worth keeping at a step, as a mask: those that its
  /// loop uses again, and the input, of which it is a stripe where the window slides.
  unsigned reused(const Step& step) const {
    return reused_along(step.dim, problem_.layer.kernel) |
           static_cast<unsigned>(slides(step)) << kInput;
  }

  /// Whether the input's inner tile may slide along a step's loop, as far as there are
  /// memories for it: all that the loop sweeps over then passes once.
  bool may_slide(const Step& step) const { return sliding_ && slides(step); }

  /// pJ of each code, ascending; the last is main memory's.
  std::span<const double> prices(int tensor) const { return prices_[tensor]; }
  int main_code(int tensor) const {
    return static_cast<int>(prices_[tensor].size()) - 1;
  }
  /// Whether what costs what depends on whether it lies outermost.
  bool tells_last(int tensor) const { return !problem_.memories[tensor].last.empty(); }
  /// Elements that the datapath moves in all.
  double demand(int tensor) const { return demand_[tensor]; }
  std::int64_t extent(int dim, int at) const { return extents_[dim][at]; }
  const Problem& problem() const { return problem_; }

 private:
  using Position = std::array<std::uint16_t, kAxes>;
  using Heights = std::array<std::vector<int>, kAxes>;
  using Choices = std::vector<std::pair<double, int>>;  // pJ, and pool

  void list_extents();
  void coarsen(std::size_t most);
  void take_together(int dim, double ratio);
  void list_tiles();
  void list_steps();
  void list_prices();
  void look(std::size_t number) const;
  void fill_in(Tile& tile) const;
  Heights heights() const;
  void add_steps(std::int32_t from, int dim);
  void add_leaps(std::int32_t from, Position inner, int dim);
  void add_step(std::int32_t from, Position inner, int dim, bool leap = false);
  const Tile& tile_at(Position at) const;
  bool slides(const Step& step) const;
  bool flipped(const Position& at) const;
  bool symmetric(const Position& at) const;
  std::size_t key(const Position& at) const;
  Choices choices(int tensor, double elements, bool sliding, bool last) const;

  Problem problem_;
  const std::function<bool()>& stop_;
  bool mirrors_, whole_, sliding_;
  // Sizes and the datapath's; of all axes.
  std::array<std::int64_t, kAxes> size_{}, base_{};
  // By axis: extents, how often they come at least, and of the window's what a column
  // more adds to an input tile's, over all of its parts.
  std::array<std::vector<std::int64_t>, kAxes> extents_;
  std::array<std::vector<double>, kAxes> visits_;
  std::array<std::vector<double>, kAxes> overlap_;
  std::vector<Tile> tiles_;
  std::vector<std::int32_t> layers_, index_;
  std::vector<Step> out_;
  std::vector<std::int32_t> out_begin_, in_, in_begin_;
  std::array<std::vector<double>, kTensors> prices_;
  std::array<std::vector<Option>, kTensors> options_;
  std::array<double, kTensors> demand_{};
};

/// Which tensor's tile is kept already, so that keeping it again is of no use: none of
/// them, or the input's, the kernel's, the output's. Never two: a loop that leaves one
/// tensor's tile alone shrinks those of the others.
enum Kind : int { kFresh, kKeptInput, kKeptKernel, kKeptOutput, kKinds };

/// Of the tensors that a loop uses again those that are not kept yet; masks.
inline unsigned worth_keeping(unsigned again, int kind) {
  return kind == kFresh ? again : again & ~(1u << (kind - 1));
}

/// The kind of the tile inside such a loop, where the tensors in `keep` are kept. Of a
/// sliding buffer the inner tile is kept, but may be once more in a memory where nothing
/// slides: that counts as not kept.
inline int kind_inside(int dim, int kind, unsigned keep, bool kernel) {
  if (kind != kFresh) keep |= reused_along(dim, kernel) & (1u << (kind - 1));
  // Every loop but that of K shrinks the input's tile: a window's its halo.
  if (dim != kK) keep &= ~(1u << kInput);
  return keep ? std::countr_zero(keep) + 1 : kFresh;
}

}  // namespace memplan::nest::optimum
