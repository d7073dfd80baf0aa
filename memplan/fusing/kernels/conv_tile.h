// The micro-kernel: M rows times a panel of N vectors of columns, in registers.
#pragma once

#include "conv_vector.h"

namespace memplan {

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

}  // namespace memplan
