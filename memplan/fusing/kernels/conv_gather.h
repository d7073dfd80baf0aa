// Rows of input brought into a buffer: padded, scaled, shifted and rectified.
#pragma once

#include "conv_call.h"
#include "conv_vector.h"

namespace memplan {

// What comes before the padding, for WIDTH channels.
struct Prologue {
  Vector scale = broadcast(1.0f), shift = Vector{};
  bool affine, relu;

  MEMPLAN_INLINE Prologue(const Convolution& call, int64_t channel)
      : affine(call.scale || call.shift), relu(call.flags & RELU_IN) {
    if (call.scale) scale = load_part(call.scale + channel, call.c - channel);
    if (call.shift) shift = load_part(call.shift + channel, call.c - channel);
  }
  MEMPLAN_INLINE Vector operator()(Vector x) const {
    if (affine) x = x * scale + shift;
    return relu ? at_least(x, Vector{}) : x;
  }
};

// Channels of one pixel: copied, or scale * x + shift and then ReLU.
MEMPLAN_INLINE void gather_values(const Convolution& call, const float* from, float* to,
                                  int64_t count) {
  if (!has_prologue(call)) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < count; i += WIDTH)
    store_part(to + i, Prologue(call, i)(load_part(from + i, count - i)), count - i);
}

inline void zero(float* to, int64_t count) {
  std::memset(to, 0, static_cast<size_t>(count) * sizeof(float));
}

// One row of an image, columns [x, x + columns) of it, of which those outside are
// zeros; so is a row outside. Pixels of the buffer lie `pitch` apart.
inline void gather_row(const Convolution& call, int64_t image, int64_t y, int64_t x,
                       int64_t columns, int64_t pitch, float* to) {
  if (y < 0 || y >= call.h) return zero(to, columns * pitch);
  const int64_t from = x < 0 ? (-x < columns ? -x : columns) : 0;
  int64_t until = call.w - x < columns ? call.w - x : columns;
  if (until < from) until = from;
  zero(to, from * pitch);
  zero(to + until * pitch, (columns - until) * pitch);
  if (from == until) return;
  const float* in = call.in + image * call.in_image + (y * call.w + x) * call.in_pixel;
  if (!has_prologue(call) && call.in_pixel == call.c && pitch == call.c)
    return gather_values(call, in + from * pitch, to + from * pitch,
                         (until - from) * pitch);
  for (int64_t i = from; i < until; ++i)
    gather_values(call, in + i * call.in_pixel, to + i * pitch, call.c);
}

}  // namespace memplan
