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

// Panel by panel, kernel row by row, tap by tap, channel by channel: a panel's width.
inline void pack_direct(const Packing& job, int threads) {
  const Panels panels(job.k);
  const int64_t taps = job.kernel_h * job.kernel_w, depth = taps * job.c;
  use_huge_pages(job, panels.padded() * depth);
  constexpr int64_t CHANNELS = 64;
  const int64_t chunks = ceil_div(job.c, CHANNELS);
  parallel(panels.count * chunks, threads, [&](int64_t task) {
    const int64_t panel = task / chunks, start = task % chunks * CHANNELS;
    const int64_t end = start + CHANNELS < job.c ? start + CHANNELS : job.c;
    const int64_t width = panels.vectors(panel) * WIDTH;
    const int64_t column = panels.first_column(panel);
    float* to = job.to + panels.offset(panel, depth);
    for (int64_t j = 0; j < width; ++j) {
      const float* from = job.from + (column + j) * depth;
      for (int64_t c = start; c < end; ++c)
        for (int64_t t = 0; t < taps; ++t)
          to[(t * job.c + c) * width + j] =
              column + j < job.k ? from[c * taps + t] : 0.0f;
    }
  });
}

}  // namespace memplan
