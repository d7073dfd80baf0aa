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
};

template <int M, int N>
struct Tile {
  Vector sum[M][N];

  MEMPLAN_INLINE void clear() {
    unroll<M>([&](auto i) MEMPLAN_LAMBDA {
      unroll<N>([&](auto j) MEMPLAN_LAMBDA { sum[i][j] = Vector{}; });
    });
  }

  MEMPLAN_INLINE void step(const float* const (&row)[M], int64_t at, const float* b) {
    Vector w[N];
    unroll<N>([&](auto j) MEMPLAN_LAMBDA { w[j] = load(b + j * WIDTH); });
    unroll<M>([&](auto i) MEMPLAN_LAMBDA {
      const Vector x = broadcast(row[i][at]);
      unroll<N>([&](auto j) MEMPLAN_LAMBDA { sum[i][j] += x * w[j]; });
    });
  }

  MEMPLAN_INLINE void multiply(const Product& product) {
    constexpr int DEEP = 4;
    const float* row[M];
    unroll<M>([&](auto i) MEMPLAN_LAMBDA { row[i] = product.rows[i]; });
    const float* b = product.weights;
    for (int64_t s = 0; s < product.count; ++s) {
      int64_t at = product.segments[s].offset;
      const int64_t end = at + product.segments[s].count;
      for (; at + DEEP <= end; at += DEEP, b += DEEP * N * WIDTH)
        unroll<DEEP>([&](auto d) MEMPLAN_LAMBDA { step(row, at + d, b + d * N * WIDTH); });
      for (; at < end; ++at, b += N * WIDTH) step(row, at, b);
    }
  }
};

}  // namespace memplan
