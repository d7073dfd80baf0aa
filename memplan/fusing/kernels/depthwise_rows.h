// Depthwise convolution of rows: windows summed in registers, then operations.
#pragma once

#include "stack_load.h"

#define MEMPLAN_LAMBDA __attribute__((always_inline))

namespace memplan {

// One row of output, of one vector of channels.
struct Line {
  const float* const* rows;  // of the input, one a tap, from the first column looked at
  int64_t ahead;             // floats in them before this vector
  const float* taps;         // weights of this vector, tap after tap, then its bias
  int64_t next;              // floats from a tap to the next
  int64_t unit;              // floats of a point in rows
  int down, across;          // taps
  int64_t stride, dilation;  // columns
  int64_t width;             // of the output
  int64_t point;             // of the plane, the first that is made
  Value* out;
  int64_t pixel;
  int lanes;
};

// Sums of so many windows beside each other. A weight is loaded once for all of them,
// and the input again for every tap, from the first cache.
template <int Count, int Across>
void sum_points(const Line& l, int64_t x, Vec* out) {
  const int across = Across ? Across : l.across;
  const int64_t step = l.stride * l.unit, apart = l.dilation * l.unit, next = l.next;
  const float* taps = l.taps;
  Vec sums[Count];
  const Vec bias = load(taps + l.down * across * next);
  MEMPLAN_UNROLL
  for (int i = 0; i < Count; ++i) sums[i] = bias;
  for (int y = 0; y < l.down; ++y) {
    const float* in = l.rows[y] + l.ahead + x * step;
    const auto add = [&](int k) MEMPLAN_LAMBDA {
      const Vec tap = load(taps + k * next);
      MEMPLAN_UNROLL
      for (int i = 0; i < Count; ++i)
        sums[i] += tap * load(in + k * apart + i * step);
    };
    if constexpr (Across > 0) {
      MEMPLAN_UNROLL
      for (int k = 0; k < Across; ++k) add(k);
    } else {
      for (int k = 0; k < l.across; ++k) add(k);
    }
    taps += across * next;
  }
  MEMPLAN_UNROLL
  for (int i = 0; i < Count; ++i) out[i] = sums[i];
}

// Operations on them, and where they go. Not unrolled: the operations may be long.
template <class After>
MEMPLAN_INLINE void put_points(const Line& l, const After& after, int64_t x, int count,
                               const Vec* sums) {
  Value* out = l.out + x * l.pixel;
  const int64_t point = l.point + x;
  if (l.lanes == kLanes) {
    for (int i = 0; i < count; ++i)
      store(out + i * l.pixel, after(sums[i], point + i, kLanes));
  } else {
    for (int i = 0; i < count; ++i)
      store_some(out + i * l.pixel, after(sums[i], point + i, l.lanes), l.lanes);
  }
}

// All of a row. What is left behind whole blocks is made by one that begins earlier:
// its first points are made twice, and are the same.
template <int Across, class After>
void make_row(const Line& line, const After& after) {
  constexpr int most = 7, few = 3;  // what widths are made of most often
  const Line l = line;  // so that no store can be taken to change it
  Vec sums[most];
  for (int64_t x = 0; x < l.width;) {
    const int64_t left = l.width - x;
    int count = left > few && l.width >= most ? most : l.width >= few ? few : 1;
    if (left < count) x = l.width - count;
    if (count == most) {
      sum_points<most, Across>(l, x, sums);
    } else if (count == few) {
      sum_points<few, Across>(l, x, sums);
    } else {
      sum_points<1, Across>(l, x, sums);
    }
    put_points(l, after, x, count, sums);
    x += count;
  }
}

}  // namespace memplan
