// Weights laid out in panels, as the micro-kernel reads them.
#pragma once

#include "conv_panel.h"
#include "conv_parallel.h"
#include "conv_scratch.h"

namespace memplan {

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
