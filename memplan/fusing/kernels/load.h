// Rows of a plane, from memory to the first buffer of a sequence.
#pragma once

#include "pools.h"

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

// Returns the largest magnitude, NaN and infinity being larger than all others.
template <class Before>
Vec load_rows(const Loading& l) {
  constexpr int step = kLast ? 1 : kLanes;
  Ints most{};
  for (int v = 0; v < l.vectors; ++v) {
    Spot spot = l.spot;
    spot.channel += v * kLanes;
    if (kLast && v > 0) {
      const int64_t left = l.call->channels - spot.channel;
      spot.lanes = left < kLanes ? (int)left : kLanes;
    }
    const Before before(*l.call, l.operand, spot);
    for (int64_t y = l.from; y < l.to; ++y) {
      float* out = l.out + (y - l.from) * l.out_row + v * kLanes;
      const Value* memory = l.memory + y * l.width * l.pixel + v * kLanes;
      int64_t x = 0;
      const int64_t whole = kLast ? l.width : l.width / kLanes * kLanes;
      for (; x < whole; x += step) {
        const Vec read = kLast ? load_lanes(memory + x * l.pixel, spot.lanes)
                               : load(memory + x);
        const Vec value = before(read, y * l.width + x, spot.lanes);
        const Ints size = bits(magnitude(value));
        most = size > most ? size : most;
        store(out + x * l.unit, value);
      }
      if (!kLast && x < l.width) {
        const int lanes = (int)(l.width - x);
        const Vec read = load_some(memory + x, lanes);
        const Vec value = before(read, y * l.width + x, lanes);
        const Ints size = bits(first_lanes(magnitude(value), lanes, Vec{}));
        most = size > most ? size : most;
        store(out + x, first_lanes(value, lanes, splat(l.outside)));
        x += kLanes;
      }
      const int64_t each = kLast ? l.unit : kLanes;
      for (int64_t at = x * (kLast ? l.unit : 1); at < l.out_row; at += each)
        store(out + at, splat(l.outside));
    }
  }
  return floats(most);
}

}  // namespace memplan
