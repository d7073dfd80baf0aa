// What a kernel is called with, and how operations find their operands.
#pragma once

#include "stack_vector.h"

namespace memplan {

// A generated source says which: values at a point lie side by side (channels last), or
// each channel is a plane of its own; and what tensors are made of.
#if MEMPLAN_CHANNELS_LAST
constexpr bool kLast = true;
#else
constexpr bool kLast = false;
#endif
#if MEMPLAN_BFLOAT16
typedef Bfloat16 Value;
#else
typedef float Value;
#endif

// Strides count elements. One value a channel: neither. One a channel of each image:
// `image`. A tensor: both; `pixel` is from one point to the next, channels last alone.
struct Operand {
  const void* data;
  int64_t image;
  int64_t pixel;
};

// All that a kernel is told. `between` has room for what passes from sequence to
// sequence, `cache` is the bytes that the buffers of a thread may take up.
struct Call {
  const void* in;
  void* out;
  void* between;
  const Operand* operands;
  int64_t images, channels, height, width;
  int64_t in_image, in_pixel;
  int64_t out_image, out_pixel;
  int64_t cache;
};

// Where values come from: an image, the first of some channels, how many of them there
// are (channels last; at most a vector), and the points of the plane they are in.
struct Spot {
  int64_t image, channel;
  int lanes;
  int64_t points;

  // The spot of the v-th vector of channels from here.
  MEMPLAN_INLINE Spot vector(const Call& call, int v) const {
    const int64_t at = channel + (int64_t)v * kLanes, left = call.channels - at;
    return {image, at, kLast && left < kLanes ? (int)left : kLanes, points};
  }
};

MEMPLAN_INLINE float value_of(float x) { return x; }
MEMPLAN_INLINE float value_of(Bfloat16 x) {
  const uint32_t word = (uint32_t)x.bits << 16;
  float value;
  __builtin_memcpy(&value, &word, 4);
  return value;
}

MEMPLAN_INLINE Vec of_channel(const Operand& operand, Spot spot) {
  const float* p = (const float*)operand.data + spot.channel;
  return kLast ? load_lanes(p, spot.lanes) : splat(*p);
}

MEMPLAN_INLINE Vec of_image(const Operand& operand, Spot spot) {
  const Value* p =
      (const Value*)operand.data + spot.image * operand.image + spot.channel;
  return kLast ? load_lanes(p, spot.lanes) : splat(value_of(*p));
}

// A tensor of the values' own shape, read point by point.
struct Beside {
  const Value* base;
  int64_t pixel;

  MEMPLAN_INLINE Beside(const Operand& operand, Spot spot)
      : base((const Value*)operand.data + spot.image * operand.image +
             spot.channel * (kLast ? 1 : spot.points)),
        pixel(kLast ? operand.pixel : 1) {}
  MEMPLAN_INLINE Vec at(int64_t point, int lanes) const {
    return load_lanes(base + point * pixel, lanes);
  }
};

// Memory of one thread, kept from call to call; it only ever grows.
class Scratch {
 public:
  ~Scratch() { free(memory_); }
  // At least so many bytes, aligned to a cache line; NULL if there are none.
  char* of(size_t bytes) {
    if (bytes > bytes_) {
      free(memory_);
      bytes_ = (bytes + 4095) / 4096 * 4096;
      memory_ = (char*)aligned_alloc(64, bytes_);
      if (memory_ == nullptr) abort();  // as where a thread's stack cannot grow
      __builtin_memset(memory_, 0, bytes_);
    }
    return memory_;
  }

 private:
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

template <int Which>
char* scratch(size_t bytes) {
  static thread_local Scratch memory;
  return memory.of(bytes);
}

}  // namespace memplan
