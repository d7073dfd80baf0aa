// One call of a convolution: everything a kernel reads, as the caller lays it out.
#pragma once

#include <cstdint>

namespace memplan {

// Tensors are channels last: element (image, y, x, channel) of the input lies at
// image * in_image + (y * w + x) * in_pixel + channel. Strides count floats; a pixel
// stride may be wider than the channels, so that a layer reads and writes slices.
struct Convolution {
  const float* in;
  float* out;
  const float* add;      // of the output's shape, or null
  const float* weights;  // as the kernel's own packing has them
  const float* plain;    // as "direct" has them: for what Winograd must do again
  const float* bias;     // k of them and zeros up to the panels' end, or null
  const float* scale;    // of the c channels that come in, or null: 1
  const float* shift;    // null: 0
  int64_t n, h, w, c, k, oh, ow;
  int64_t kernel_h, kernel_w, stride_h, stride_w;
  int64_t padding_h, padding_w, dilation_h, dilation_w;
  int64_t in_pixel, in_image, out_pixel, out_image, add_pixel, add_image;
  float low, high;  // what the output is clamped to, under CLAMP
  int32_t flags;
  int32_t reserved;
};

enum Flags : int32_t {
  RELU_IN = 1,   // after scale and shift, before the padding
  RELU_OUT = 2,  // after bias and addition
  CLAMP_OUT = 4,
};

inline bool has_prologue(const Convolution& call) {
  return call.scale || call.shift || (call.flags & RELU_IN);
}

}  // namespace memplan
