// One tile of a Winograd convolution: in, out, and again where it was not finite.
#pragma once

#include "conv_gather.h"
#include "conv_panel.h"
#include "conv_winograd_math.h"

namespace memplan {

// R x R pixels of output, from row y and column x of an image.
struct Corner {
  int64_t image, y, x;
};

// B^T d B of every channel; result p of channel c goes to to[p * stride + c]. Behind
// the channels there is room for a vector.
template <int R>
inline void tile_in(const Convolution& call, const Corner& at, float* to,
                    int64_t stride) {
  constexpr int N = R + 2;
  const float* pixel[N][N];
  for (int y = 0; y < N; ++y)
    for (int x = 0; x < N; ++x) {
      const int64_t row = at.y + y - call.padding_h, column = at.x + x - call.padding_w;
      const bool inside = row >= 0 && row < call.h && column >= 0 && column < call.w;
      pixel[y][x] = inside ? call.in + at.image * call.in_image +
                                 (row * call.w + column) * call.in_pixel
                           : nullptr;
    }
  const bool changed = has_prologue(call);
  for (int64_t c = 0; c < call.c; c += WIDTH) {
    const Prologue prologue(call, c);
    Vector middle[N][N];
    for (int x = 0; x < N; ++x) {
      Vector d[N];
      MEMPLAN_UNROLL
      for (int y = 0; y < N; ++y) {
        const float* from = pixel[y][x];
        d[y] = Vector{};
        if (!from) continue;
        d[y] = load_part(from + c, call.c - c);
        if (changed) d[y] = prologue(d[y]);
      }
      Filtering<R>::input(d);
      MEMPLAN_UNROLL
      for (int y = 0; y < N; ++y) middle[y][x] = d[y];
    }
    for (int y = 0; y < N; ++y) {
      Filtering<R>::input(middle[y]);
      MEMPLAN_UNROLL
      for (int x = 0; x < N; ++x) store(to + (y * N + x) * stride + c, middle[y][x]);
    }
  }
}

MEMPLAN_INLINE void finish_pixel(const Convolution& call, const Corner& at,
                                 int64_t column, Vector x) {
  const int64_t rest = call.k - column, pixel = at.y * call.ow + at.x;
  if (call.bias) x += load(call.bias + column);
  if (call.add)
    x += load_part(
        call.add + at.image * call.add_image + pixel * call.add_pixel + column, rest);
  if (call.flags & RELU_OUT) x = at_least(x, Vector{});
  if (call.flags & CLAMP_OUT)
    x = at_most(at_least(x, broadcast(call.low)), broadcast(call.high));
  store_part(call.out + at.image * call.out_image + pixel * call.out_pixel + column, x,
             rest);
}

// A vector of columns of one pixel as "direct" computes it, so that what is not finite
// reaches those outputs alone that see it.
__attribute__((noinline)) inline Vector direct_pixel(const Convolution& call,
                                                     const Corner& at, int64_t column) {
  const Panels panels(call.k);
  int64_t panel = column / (PANEL * WIDTH);
  if (panel >= panels.count) panel = panels.count - 1;
  const int64_t width = panels.vectors(panel) * WIDTH;
  const float* weights = call.plain + panels.offset(panel, 9 * call.c) +
                         (column - panels.first_column(panel));
  Vector sum{};
  for (int64_t tap = 0; tap < 9; ++tap) {
    const int64_t y = at.y + tap / 3 - call.padding_h;
    const int64_t x = at.x + tap % 3 - call.padding_w;
    if (y < 0 || y >= call.h || x < 0 || x >= call.w) continue;
    const float* in =
        call.in + at.image * call.in_image + (y * call.w + x) * call.in_pixel;
    for (int64_t c = 0; c < call.c; ++c) {
      float value = in[c];
      if (call.scale) value *= call.scale[c];
      if (call.shift) value += call.shift[c];
      if ((call.flags & RELU_IN) && value < 0.0f) value = 0.0f;
      sum += broadcast(value) * load(weights + (tap * call.c + c) * width);
    }
  }
  return sum;
}

// A^T m A of columns [first, last), and what follows; m of point p and column k lies at
// from[p * stride + k - first].
template <int R>
inline void tile_out(const Convolution& call, const Corner& at, int64_t first,
                     int64_t last, const float* from, int64_t stride) {
  constexpr int N = R + 2;
  const int rows = static_cast<int>(call.oh - at.y < R ? call.oh - at.y : R);
  const int columns = static_cast<int>(call.ow - at.x < R ? call.ow - at.x : R);
  for (int64_t k = first; k < last; k += WIDTH, from += WIDTH) {
    Vector middle[R][N], bad{};
    for (int x = 0; x < N; ++x) {
      Vector m[N];
      MEMPLAN_UNROLL
      for (int y = 0; y < N; ++y) m[y] = load(from + (y * N + x) * stride);
      Filtering<R>::output(m);
      MEMPLAN_UNROLL
      for (int y = 0; y < R; ++y) middle[y][x] = m[y];
    }
    for (int y = 0; y < R; ++y) {
      Filtering<R>::output(middle[y]);
      MEMPLAN_UNROLL
      for (int x = 0; x < R; ++x) bad += middle[y][x] * 0.0f;
    }
    const bool again = any_nan(bad);
    for (int y = 0; y < rows; ++y)
      for (int x = 0; x < columns; ++x) {
        const Corner pixel{at.image, at.y + y, at.x + x};
        finish_pixel(call, pixel, k,
                     again ? direct_pixel(call, pixel, k) : middle[y][x]);
      }
  }
}

}  // namespace memplan
