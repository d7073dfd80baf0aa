// What the search for the least-energy loop nest is asked, and what it answers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace memplan::nest::optimum {

/// The tensors of a layer, and the dimensions of its loops; kF is the whole window.
enum Tensor : int { kInput, kKernel, kOutput, kTensors };
enum Dim : int { kX, kY, kC, kK, kB, kFw, kFh, kF };
inline constexpr int kDims = 5;  // without the window's
inline constexpr int kAxes = 7;  // with the window's columns and rows
inline constexpr int kMostPools = 4;

/// The nests that are meant. kDivisors: extents divide each other, and the window's
/// loops stay together, innermost to outermost, as one that is not split. kWhole: any
/// extents, and the window's loops anywhere.
enum class Space { kDivisors, kWhole };

/// Whether a loop is the window's, or one axis of it.
inline bool is_window(int dim) { return dim >= kFw; }

/// The tensors that a loop uses again, as a mask; of an absent kernel there is none.
inline unsigned reused_along(int dim, bool kernel) {
  if (is_window(dim)) return (1u << kInput) | (1u << kOutput);
  switch (dim) {
    case kC: return 1u << kOutput;
    case kK: return 1u << kInput;
    default: return kernel ? 1u << kKernel : 0u;
  }
}

/// extent: sizes, of kDivisors multiples of `base`, which the datapath covers below all
/// loops; window, base_window and stride: columns and rows. kernel: whether it has weights.
struct Layer {
  std::array<std::int64_t, kDims> extent{}, base{};
  std::array<std::int64_t, 2> window{}, base_window{}, stride{};
  bool kernel = true;

  /// Of all axes, in their order.
  std::array<std::int64_t, kAxes> sizes() const { return axes(extent, window); }
  std::array<std::int64_t, kAxes> bases() const { return axes(base, base_window); }

 private:
  static std::array<std::int64_t, kAxes> axes(
      const std::array<std::int64_t, kDims>& dims,
      const std::array<std::int64_t, 2>& windows) {
    return {dims[kX], dims[kY], dims[kC], dims[kK], dims[kB], windows[0], windows[1]};
  }
};

/// Energy of an access to a memory of `bytes`.
struct Knot {
  double bytes, pj;
};

/// A memory that is there: what an access costs, where its bytes are taken from, and
/// whether it can have sliding buffers, which only of the input make a difference.
struct Level {
  double bytes, pj;
  int pool;  // -1: none other uses it
  bool slides = false;
};

/// What one tensor's tiles may be kept in.
///
/// Either memories made to measure, whose energy is given by `knots`, ascending and
/// linear between them if both axes are logarithmic, up to `largest` bytes; or
/// `levels`. Outside of both lies main memory, at `main_pj`. last: knots of a memory made
/// to measure that no other of the tensor's lies outside of, where that has its own.
struct Memories {
  std::vector<Knot> knots, last;
  double largest = 0;
  int pool = -1;  // of memories made to measure
  bool slides = false;  // likewise
  std::vector<Level> levels;
  double main_pj = 0;
};

/// pools: bytes that several memories share. count_fills: whether what comes from
/// outside is also charged where it is written to. element_bytes: of each tensor's, of
/// the output's a partial sum. last_write: what the last of an element's writes, which is
/// the result, takes, in parts of a partial sum's.
struct Problem {
  Layer layer;
  Space space = Space::kDivisors;
  std::array<Memories, kTensors> memories;
  std::vector<double> pools;
  std::array<double, kTensors> element_bytes{};
  double last_write = 1;
  bool count_fills = false;

  /// What so many elements of a tensor take up, in whole bytes.
  double bytes(int tensor, double elements) const {
    return std::ceil(elements * element_bytes[tensor]);
  }
  /// Partial sums written n times and read n - 1 times, of which the last is a result.
  double passes(double n) const { return 2 * n - 2 + last_write; }

  /// What an element takes where it is written to, in a memory at `pj` an access.
  double filling(double pj) const { return count_fills ? pj : 0; }
};

/// How far tiles cover one axis: their extent, how many of them there are at least, and of
/// the window's, the columns that each position of the image adds to the input's tiles.
struct Covered {
  double extent = 1, visits = 1, overlap = 1;
};

/// Elements of a tensor's tile, and those that pass its boundary over all visits.
struct Moved {
  double elements, fill;
};

/// Of one tensor's tiles, by axis; all: the layer's sizes.
inline Moved moved(const Problem& problem, int tensor,
                   const std::array<double, kAxes>& all,
                   const std::array<Covered, kAxes>& at) {
  const Layer& layer = problem.layer;
  if (tensor == kKernel) {
    if (!layer.kernel) return {0, 0};
    return {at[kC].extent * at[kK].extent * at[kFw].extent * at[kFh].extent,
            all[kC] * all[kK] * all[kFw] * all[kFh] * at[kX].visits * at[kY].visits *
                at[kB].visits};
  }
  if (tensor == kOutput) {
    // Every partial sum but the first is also read back.
    return {at[kX].extent * at[kY].extent * at[kK].extent * at[kB].extent,
            all[kX] * all[kY] * all[kK] * all[kB] *
                problem.passes(at[kC].visits * at[kFw].visits * at[kFh].visits)};
  }
  Moved found{at[kC].extent * at[kB].extent, all[kC] * all[kB] * at[kK].visits};
  for (int i = 0; i < 2; ++i) {
    const Covered &along = at[kX + i], &window = at[kFw + i];
    const auto stride = static_cast<double>(layer.stride[i]);
    found.elements *=
        (along.extent - 1) * std::min(stride, window.extent) + window.extent;
    // Of each tile the window's parts, and what every further column adds to them.
    found.fill *=
        along.visits * all[kFw + i] + (all[kX + i] - along.visits) * window.overlap;
  }
  return found;
}

/// A loop, by what it covers together with those inside it; of kF, extent is 0.
struct Loop {
  int dim;
  std::int64_t extent;
};

/// A tile that is kept: for the loops from `loop` inwards, counted from the innermost;
/// or, where it slides, the tile inside of that loop.
struct Kept {
  int tensor, loop;
  double elements, pj;
  bool slides;
};

/// loops: innermost first; empty as long as none were found. lower_bound: no nest takes
/// less energy. labels: partial nests that were looked at. kept: inside out.
struct Optimum {
  double energy = 0, lower_bound = 0;
  bool proved = false;
  std::int64_t labels = 0;
  std::vector<Loop> loops;
  std::vector<Kept> kept;
};

}  // namespace memplan::nest::optimum
