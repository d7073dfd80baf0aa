// A stack without pools: values pass through all operations in registers.
//
// Tasks are ranges of points, of one image and channel where channels are planes; each
// writes the outputs at its own points and no others.
#pragma once

#include "stack_call.h"
#include "stack_vector.h"

namespace memplan {

template <class Operations>
void map_points(const Call& call, int64_t image, int64_t channel, int64_t from,
                int64_t to) {
  const int64_t points = call.height * call.width;
  const int64_t left = call.channels - channel;
  const int all = kLast && left < kLanes ? (int)left : kLanes;
  const Operations operations(call, 0, Spot{image, channel, all, points});
  const int64_t ahead = channel * (kLast ? 1 : points);
  const Value* in = (const Value*)call.in + image * call.in_image + ahead;
  Value* out = (Value*)call.out + image * call.out_image + ahead;
  if constexpr (kLast) {
    for (int64_t i = from; i < to; ++i)
      store_lanes(out + i * call.out_pixel,
                  operations(load_lanes(in + i * call.in_pixel, all), i, all), all);
  } else {
    int64_t i = from;
    for (; i + kLanes <= to; i += kLanes)
      store(out + i, operations(load(in + i), i, kLanes));
    if (i < to) {
      const int lanes = (int)(to - i);
      store_some(out + i, operations(load_some(in + i, lanes), i, lanes), lanes);
    }
  }
}

template <class Operations>
void run_map(const Call& call, [[maybe_unused]] int threads) {
  constexpr int64_t block = 4096;  // values of a task; a multiple of every vector
  const int64_t points = call.height * call.width;
  const int64_t beside = kLast ? call.channels : 1;
  int64_t length = block / (beside < block ? beside : block);
  if (!kLast) length = block;
  const int64_t parts = (points + length - 1) / length;
  const int64_t groups = kLast ? 1 : call.channels;
  const int64_t tasks = call.images * groups * parts;
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t from = task % parts * length, rest = task / parts;
    const int64_t to = from + length < points ? from + length : points;
    if (kLast) {
      // In order, where operands need not be read again for each point.
      const int64_t some = __is_empty(Operations) ? 1 : to - from;
      for (int64_t at = from; at < to; at += some)
        for (int64_t channel = 0; channel < call.channels; channel += kLanes)
          map_points<Operations>(call, rest, channel, at, at + some);
    } else {
      map_points<Operations>(call, rest / groups, rest % groups, from, to);
    }
  }
}

}  // namespace memplan
