// Tiles of output pixels by a panel of output channels, and weights packed for them.
#pragma once

#include <array>
#include <utility>

#include "conv_call.h"

namespace memplan {

// The micro-kernel: M rows times a panel of N vectors of columns, in registers.

// Weights lie in panels of PANEL vectors; the last one may have 1 to PANEL + 1.
constexpr int PANEL = 2;
constexpr int WIDEST = PANEL + 1;

// Rows of a tile of N vectors: N of weights, one broadcast, the rest accumulate.
constexpr int tile_rows(int vectors) {
  const int most = REGISTERS == 32 ? 14 : 6;
  const int rows = (REGISTERS - vectors - 1) / vectors;
  return rows < most ? rows : most;
}

// A run of values that lie together in every row, and in the weights.
struct Segment {
  int64_t offset;  // from the row's pointer
  int64_t count;
};

struct Product {
  const float* const* rows;  // where each row of the tile begins
  const Segment* segments;
  int64_t count;         // of segments
  const float* weights;  // of the panel: per value N vectors
  const float* ahead;    // weights that are wanted soon
};

template <int M, int N>
struct Tile {
  Vector sum[M][N];

  // Every sum replaced by what change(sum, row, vector) makes of it.
  template <typename Change>
  MEMPLAN_INLINE void each(Change&& change) {
    MEMPLAN_UNROLL
    for (int i = 0; i < M; ++i) {
      MEMPLAN_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] = change(sum[i][j], i, j);
    }
  }

  // A tile of many rows has time to fetch a line a step of the weights that come next;
  // one of few waits for its own.
  static MEMPLAN_INLINE void fetch(const float* ahead, const float* b) {
    constexpr int64_t DISTANCE = 1024;
    if constexpr (M > 8) {
      __builtin_prefetch(ahead, 0, 2);
    } else {
      MEMPLAN_UNROLL
      for (int j = 0; j < N; ++j) __builtin_prefetch(b + DISTANCE + j * WIDTH);
    }
  }

  MEMPLAN_INLINE void step(const float* const (&row)[M], int64_t at, const float* b) {
    Vector w[N];
    MEMPLAN_UNROLL
    for (int j = 0; j < N; ++j) w[j] = load(b + j * WIDTH);
    MEMPLAN_UNROLL
    for (int i = 0; i < M; ++i) {
      const Vector x = broadcast(row[i][at]);
      MEMPLAN_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] += x * w[j];
    }
  }

  MEMPLAN_INLINE void multiply(const Product& product) {
    const float* row[M];
    MEMPLAN_UNROLL
    for (int i = 0; i < M; ++i) row[i] = product.rows[i];
    const float *b = product.weights, *ahead = product.ahead;
    for (int64_t s = 0; s < product.count; ++s) {
      int64_t at = product.segments[s].offset;
      const int64_t end = at + product.segments[s].count;
      for (; at + 2 <= end; at += 2, b += 2 * N * WIDTH, ahead += 2 * WIDTH) {
        fetch(ahead, b);
        step(row, at, b);
        fetch(ahead + WIDTH, b + N * WIDTH);
        step(row, at + 1, b + N * WIDTH);
      }
      if (at < end) {
        step(row, at, b);
        b += N * WIDTH, ahead += WIDTH;
      }
    }
  }
};

// Rows times a panel of weights, whatever their number, and what follows the sum.

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

// Weights laid out in panels, as the micro-kernel reads them.

struct Packing {
  const float* from;  // dense: (k, c, kernel_h, kernel_w)
  float* to;
  int64_t k, c, kernel_h, kernel_w;
};

// Large weights are read by large pages, where the system gives them.
inline void use_huge_pages([[maybe_unused]] const Packing& job,
                           [[maybe_unused]] int64_t floats) {
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t PAGE = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(job.to);
  const uintptr_t first = (begin + PAGE - 1) / PAGE * PAGE;
  const uintptr_t last = (begin + static_cast<uintptr_t>(floats) * 4) / PAGE * PAGE;
  if (first < last)
    (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Some rows of weights, those of neighbouring columns, side by side: `rows` of them are
// there, and zeros stand for the rest.
constexpr int TOGETHER = 4;  // every panel's width is a multiple

inline void pack_rows(const Packing& job, const float* from, int64_t rows,
                      int64_t start, int64_t end, float* to, int64_t width) {
  const int64_t channels = job.c, taps = job.kernel_h * job.kernel_w;
  const int64_t depth = taps * channels;
  for (int64_t t = 0; t < taps; ++t)
    for (int64_t c = start; c < end; ++c) {
      float values[TOGETHER] = {};
      if (rows >= TOGETHER) {
        MEMPLAN_UNROLL
        for (int i = 0; i < TOGETHER; ++i) values[i] = from[i * depth + c * taps + t];
      } else {
        for (int64_t i = 0; i < rows; ++i) values[i] = from[i * depth + c * taps + t];
      }
      std::memcpy(to + (t * channels + c) * width, values, sizeof(values));
    }
}

// Panel by panel, kernel row by row, tap by tap, channel by channel: a panel's width.
inline void pack_direct(const Packing& job, int threads) {
  const Panels panels(job.k);
  const int64_t taps = job.kernel_h * job.kernel_w, depth = taps * job.c;
  use_huge_pages(job, panels.padded() * depth);
  const int64_t channels = taps == 1 ? 256 : 16;  // at a time: they stay in cache
  const int64_t chunks = ceil_div(job.c, channels);
  parallel(panels.count * chunks, threads, [&](int64_t task) {
    const int64_t panel = task / chunks, start = task % chunks * channels;
    const int64_t end = start + channels < job.c ? start + channels : job.c;
    const int64_t width = panels.vectors(panel) * WIDTH;
    const int64_t column = panels.first_column(panel);
    float* to = job.to + panels.offset(panel, depth);
    for (int64_t j = 0; j < width; j += TOGETHER)
      pack_rows(job, job.from + (column + j) * depth, job.k - column - j, start, end,
                to + j, width);
  });
}

}  // namespace memplan
