// Rows of a plane, from memory to the first buffer of a sequence.
#pragma once

#include "stack_pools.h"

namespace memplan {

// What fills a buffer: rows [from, to) of the plane, which starts at `memory`.
struct Loading {
  const Call* call;
  int operand;
  Spot spot;
  int vectors;
  int64_t unit;
  const Value* memory;
  int64_t pixel, width;
  int64_t from, to;
  float* out;  // column 0 of row `from`
  int64_t out_row;
  float outside;
};

// The larger of magnitudes, as integers: NaN and infinity are larger than all others.
MEMPLAN_INLINE void note(Ints& most, Vec value) {
  const Ints size = bits(magnitude(value));
  most = size > most ? size : most;
}

// Channels last: points in blocks, so that memory is read nearly in order.
template <class Before>
void load_points(const Loading& l, Ints& most) {
  constexpr int64_t block = __is_empty(Before) ? 1 : 16;  // operands are read for each
  for (int64_t y = l.from; y < l.to; ++y) {
    float* out = l.out + (y - l.from) * l.out_row;
    const Value* memory = l.memory + y * l.width * l.pixel;
    for (int64_t start = 0; start < l.width; start += block) {
      const int64_t end = start + block < l.width ? start + block : l.width;
      for (int v = 0; v < l.vectors; ++v) {
        const Spot spot = l.spot.vector(*l.call, v);
        const Before before(*l.call, l.operand, spot);
        const int64_t at = v * kLanes;
        for (int64_t x = start; x < end; ++x) {
          const Vec read = load_lanes(memory + x * l.pixel + at, spot.lanes);
          const Vec value = before(read, y * l.width + x, spot.lanes);
          note(most, value);
          store(out + x * l.unit + at, value);
        }
      }
    }
    for (int64_t at = l.width * l.unit; at < l.out_row; at += kLanes)
      store(out + at, splat(l.outside));
  }
}

template <class Before>
void load_plane(const Loading& l, Ints& most) {
  const Before before(*l.call, l.operand, l.spot);
  for (int64_t y = l.from; y < l.to; ++y) {
    float* out = l.out + (y - l.from) * l.out_row;
    const int64_t first = y * l.width;
    const Value* memory = l.memory + first;
    int64_t x = 0;
    for (; x + kLanes <= l.width; x += kLanes) {
      const Vec value = before(load(memory + x), first + x, kLanes);
      note(most, value);
      store(out + x, value);
    }
    if (x < l.width) {
      const int lanes = (int)(l.width - x);
      const Vec value = before(load_some(memory + x, lanes), first + x, lanes);
      note(most, first_lanes(value, lanes, Vec{}));
      store(out + x, first_lanes(value, lanes, splat(l.outside)));
      x += kLanes;
    }
    for (; x < l.out_row; x += kLanes) store(out + x, splat(l.outside));
  }
}

// Returns the largest magnitude, lane by lane; NaN is larger than infinity.
template <class Before>
Vec load_rows(const Loading& rows) {
  const Loading l = rows;  // so that no store can be taken to change it
  Ints most{};
  if constexpr (kLast) {
    load_points<Before>(l, most);
  } else {
    load_plane<Before>(l, most);
  }
  return floats(most);
}

}  // namespace memplan
