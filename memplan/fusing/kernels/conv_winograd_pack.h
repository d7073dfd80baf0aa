// Weights of a 3x3 convolution in Winograd's domain: a matrix of panels a point.
#pragma once

#include "conv_pack.h"
#include "conv_winograd_math.h"

namespace memplan {

// G g G^T of `width` kernels at once; `to` has a row of the width for each result,
// `stride` apart.
template <int R>
inline void transform_kernels(const double (&g)[9][WIDEST * WIDTH], int64_t width,
                              float* to, int64_t stride) {
  constexpr int N = R + 2;
  const auto& G = Filtering<R>::G;
  for (int y = 0; y < N; ++y)
    for (int x = 0; x < N; ++x) {
      float* row = to + (y * N + x) * stride;
      for (int64_t j = 0; j < width; ++j) {
        double sum = 0;
        for (int a = 0; a < 3; ++a)
          for (int b = 0; b < 3; ++b) sum += G[y][a] * G[x][b] * g[a * 3 + b][j];
        row[j] = static_cast<float>(sum);
      }
    }
}

// Panel by panel, point by point, channel by channel: a panel's width.
template <int R>
inline void pack_winograd(const Packing& job, int threads) {
  constexpr int POINTS = (R + 2) * (R + 2);
  const Panels panels(job.k);
  use_huge_pages(job, panels.padded() * job.c * POINTS);
  constexpr int64_t CHANNELS = 16;
  const int64_t chunks = ceil_div(job.c, CHANNELS);
  parallel(panels.count * chunks, threads, [&](int64_t task) {
    const int64_t panel = task / chunks, start = task % chunks * CHANNELS;
    const int64_t end = start + CHANNELS < job.c ? start + CHANNELS : job.c;
    const int64_t width = panels.vectors(panel) * WIDTH;
    const int64_t column = panels.first_column(panel);
    float* to = job.to + panels.offset(panel, job.c * POINTS);
    double g[9][WIDEST * WIDTH] = {};
    for (int64_t c = start; c < end; ++c) {
      for (int64_t j = 0; j < width && column + j < job.k; ++j)
        for (int t = 0; t < 9; ++t)
          g[t][j] = job.from[((column + j) * job.c + c) * 9 + t];
      transform_kernels<R>(g, width, to + c * width, job.c * width);
    }
  });
}

}  // namespace memplan
