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

// The columns of one panel, for the rows that the tables list.
struct Work {
  const float* const* in;   // where each row of values begins
  float* const* out;        // where column 0 of each row goes
  const float* const* add;  // likewise; null: nothing is added
  const Segment* segments;
  int64_t count;  // of segments
  const float* weights;
  const float* bias;  // of all columns, padded to whole vectors; or null
  int64_t column, columns;  // the first one, and how many there are in all
  float low, high;
  int32_t flags;
  float* partial;  // sums of earlier segments, and for later ones
  bool first, last;
};

// The last columns of some rows, fewer than the panel is wide: `sums` of M rows.
inline void finish_part(const Work& work, int64_t row, int64_t rows, int64_t width,
                        const float* sums) {
  const int64_t rest = work.columns - work.column;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < rest; ++j) {
      float x = sums[i * width + j];
      if (work.bias) x += work.bias[work.column + j];
      if (work.add) x += work.add[row + i][work.column + j];
      if (work.flags & RELU_OUT) x = x < 0.0f ? 0.0f : x;
      if (work.flags & CLAMP_OUT) {
        x = x < work.low ? work.low : x;
        x = x > work.high ? work.high : x;
      }
      work.out[row + i][work.column + j] = x;
    }
}

template <int M, int N>
MEMPLAN_INLINE void finish(Tile<M, N>& tile, const Work& work, int64_t row) {
  if (work.columns - work.column < N * WIDTH) {
    float sums[M * N * WIDTH];
    tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
      store(sums + (i * N + j) * WIDTH, x);
      return x;
    });
    return finish_part(work, row, M, N * WIDTH, sums);
  }
  const auto at_column = [&](const float* from, int j) MEMPLAN_LAMBDA {
    return load(from + work.column + j * WIDTH);
  };
  if (work.bias)
    tile.each([&](Vector x, int, int j) MEMPLAN_LAMBDA {
      return x + at_column(work.bias, j);
    });
  if (work.add)
    tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
      return x + at_column(work.add[row + i], j);
    });
  if (work.flags & RELU_OUT)
    tile.each([](Vector x, int, int) MEMPLAN_LAMBDA { return at_least(x, Vector{}); });
  if (work.flags & CLAMP_OUT) {
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

template <int M, int N>
void run_tile(const Work& work, int64_t row) {
  Tile<M, N> tile;
  tile.each([](Vector, int, int) MEMPLAN_LAMBDA { return Vector{}; });
  tile.multiply({work.in + row, work.segments, work.count, work.weights});
  float* partial = work.partial + row * N * WIDTH;
  if (!work.first)
    tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
      return x + load(partial + (i * N + j) * WIDTH);
    });
  if (work.last) return finish(tile, work, row);
  tile.each([&](Vector x, int i, int j) MEMPLAN_LAMBDA {
    store(partial + (i * N + j) * WIDTH, x);
    return x;
  });
}

using TileFunction = void (*)(const Work&, int64_t);

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
    table[static_cast<size_t>(height - 1)](work, row);
    row += height;
  }
}

inline void run_panel(const Work& work, int vectors, int64_t rows) {
  if (vectors == PANEL) return run_rows<PANEL>(work, rows);
  if (vectors < PANEL) return run_rows<1>(work, rows);
  run_rows<WIDEST>(work, rows);
}

}  // namespace memplan
