// Rows times a panel of weights, whatever their number, and what follows the sum.
#pragma once

#include <array>
#include <utility>

#include "conv_call.h"
#include "conv_tile.h"

namespace memplan {

// How a layer's output channels are cut into panels.
struct Panels {
  int64_t columns, count;
  int last;  // vectors of the last panel

  explicit Panels(int64_t k) : columns(k) {
    const int64_t vectors = ceil_div(k, WIDTH);
    count = vectors / PANEL > 1 ? vectors / PANEL : 1;
    last = static_cast<int>(vectors - PANEL * (count - 1));
  }
  int vectors(int64_t panel) const { return panel + 1 < count ? PANEL : last; }
  int64_t first_column(int64_t panel) const { return panel * PANEL * WIDTH; }
  // Floats of the panels before this one, of `depth` values each.
  int64_t offset(int64_t panel, int64_t depth) const {
    return first_column(panel) * depth;
  }
  int64_t padded() const { return first_column(count - 1) + last * WIDTH; }
};

// Input that is wanted after this block, to be fetched a line a step.
struct Later {
  const float* next = nullptr;
  const float* end = nullptr;
};

// The columns of one panel, for the rows that the tables list.
struct Work {
  const float* const* in;   // where each row of values begins
  float* const* out;        // where the first column of each row goes
  const float* const* add;  // likewise; null: nothing is added
  const Segment* segments;
  int64_t count;         // of segments
  const float* weights;  // of the panel
  const float* ahead;    // the weights that come after these
  Later* later;          // moves on as lines are fetched
  int64_t depth;         // values a row: as many as the segments have
  const float* start;    // what the sums begin with: a value a column of the panel
  int64_t column;        // the panel's first one
  int64_t columns;       // how many of it there are to store
  bool fetches_out;      // before the sums, where these are short and stores wait
  bool bounded;          // clamped to low and high, last of all
  float low, high;
};

constexpr float INF = __builtin_inff();
alignas(64) inline constexpr float ZEROS[WIDEST * WIDTH] = {};

// What a call's flags do to its results.
inline void bound(Work& work, const Convolution& call) {
  work.low = -INF, work.high = INF;
  if (call.flags & CLAMP_OUT) work.low = call.low, work.high = call.high;
  if ((call.flags & RELU_OUT) && work.low < 0.0f) work.low = 0.0f;
  work.bounded = call.flags & (RELU_OUT | CLAMP_OUT);
}

// The last columns of some rows, fewer than the panel is wide: `sums` of M rows.
inline void finish_part(const Work& work, int64_t row, int64_t rows, int64_t width,
                        const float* sums) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < work.columns; ++j) {
      float x = sums[i * width + j];
      if (work.add) x += work.add[row + i][work.column + j];
      if (work.bounded) {
        x = x < work.low ? work.low : x;
        x = x > work.high ? work.high : x;
      }
      work.out[row + i][work.column + j] = x;
    }
}

template <int M, int N>
void run_tile(const Work& work, int64_t row, const float* ahead) {
  Tile<M, N> tile;
  tile.each([&](Vector, int, int j) MEMPLAN_LAMBDA {
    return load(work.start + j * WIDTH);
  });
  if (work.fetches_out)
    tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
      __builtin_prefetch(work.out[row + i] + work.column + j * WIDTH, 1);
      return x;
    });
  tile.multiply({work.in + row, work.segments, work.count, work.weights, ahead});
  if (work.columns < N * WIDTH) {
    float sums[M * N * WIDTH];
    tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
      store(sums + (i * N + j) * WIDTH, x);
      return x;
    });
    return finish_part(work, row, M, N * WIDTH, sums);
  }
  if (work.add)
    tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
      return x + load(work.add[row + i] + work.column + j * WIDTH);
    });
  if (work.bounded) {
    const Vector low = broadcast(work.low), high = broadcast(work.high);
    tile.each([&](Vector x, int, int) MEMPLAN_LAMBDA {
      return at_most(at_least(x, low), high);
    });
  }
  tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
    store(work.out[row + i] + work.column + j * WIDTH, x);
    return x;
  });
}

using TileFunction = void (*)(const Work&, int64_t, const float*);

template <int N, int... M>
constexpr auto tile_table(std::integer_sequence<int, M...>) {
  return std::array<TileFunction, sizeof...(M)>{&run_tile<M + 1, N>...};
}

// All rows, in tiles of nearly the same height.
template <int N>
inline void run_rows(const Work& work, int64_t rows) {
  constexpr int MOST = tile_rows(N);
  static constexpr auto table = tile_table<N>(std::make_integer_sequence<int, MOST>{});
  const int64_t tiles = ceil_div(rows, MOST);
  for (int64_t t = 0, row = 0; t < tiles; ++t) {
    const int64_t height = (rows - row) / (tiles - t);
    // The first N tiles fetch the weights that come next, the others input.
    const float* ahead = work.weights;
    if (t < N) {
      ahead = work.ahead + t * work.depth * WIDTH;
    } else if (work.later->next < work.later->end) {
      ahead = work.later->next;
      work.later->next += work.depth * WIDTH;
    }
    table[static_cast<size_t>(height - 1)](work, row, ahead);
    row += height;
  }
}

inline void run_panel(const Work& work, int vectors, int64_t rows) {
  if (vectors == PANEL) return run_rows<PANEL>(work, rows);
  if (vectors < PANEL) return run_rows<1>(work, rows);
  run_rows<WIDEST>(work, rows);
}

}  // namespace memplan
