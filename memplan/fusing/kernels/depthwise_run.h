// A depthwise convolution between element-wise operations, channels last.
//
// Rows of input lie in a ring of as many as a window reaches over: read from memory
// once, passed through the operations in front, and padded with zeros. From it rows of
// output are made and stored.
//
// Tasks are (image, group of channels, part of the rows). Each writes the outputs of
// its own channels and rows and no others, and the ring of its thread; what it reads is
// written by none. So there is nothing to race for.
#pragma once

#include "stack_pools.h"

#define MEMPLAN_LAMBDA __attribute__((always_inline))

namespace memplan {

// Depthwise convolution of rows: windows summed in registers, then operations.

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

struct Window {
  Axis down, across;
  int below, right;  // rows and columns of padding more than in front
};

struct Depthwise {
  const Call* call;
  Window window;
  int operand;  // weights: a row of channels for each tap, and one for the bias
  int64_t out_height, out_width;
  int64_t group, groups;  // channels of a task; tasks beside each other
  int64_t parts;          // of the rows
  int64_t unit;           // floats of a point in the ring
  int64_t row;            // floats of a row of it
  const float* taps;
  int64_t next;  // floats from a tap to the next

  Depthwise(const Call& given, Window window_, int operand_, int threads)
      : call(&given), window(window_), operand(operand_) {
    out_height = made(given.height + window.below, window.down);
    out_width = made(given.width + window.right, window.across);
    taps = (const float*)given.operands[operand].data;
    next = given.operands[operand].pixel;
    choose_group(threads);
    const int64_t tasks = given.images * groups, most = out_height / 4;
    parts = 1;
    if (tasks > 0 && tasks < threads) parts = (threads + tasks - 1) / tasks;
    if (parts > most) parts = most > 1 ? most : 1;
  }

  int64_t tasks() const { return call->images * groups * parts; }
  int64_t floats() const { return (window.down.reach() + 1) * row; }

 private:
  static int64_t made(int64_t size, const Axis& axis) {
    return (size + 2 * axis.padding - axis.reach()) / axis.stride + 1;
  }

  void set_group(int64_t channels) {
    const Axis& across = window.across;
    const int64_t end = (out_width - 1) * across.stride + across.reach();
    const int64_t all = across.padding + call->width;
    group = channels;
    groups = (call->channels + group - 1) / group;
    unit = (group + kLanes - 1) / kLanes * kLanes;
    row = (end > all ? end : all) * unit;
  }

  // As many channels as keep the ring in half of the first cache. Of images that are
  // many times as large all are taken: memory is best read in order.
  void choose_group(int threads) {
    constexpr int64_t line = 64 / sizeof(Value) > kLanes ? 64 / sizeof(Value) : kLanes;
    const int64_t pixels = call->height * call->width;
    const int64_t image = pixels * call->channels * (int64_t)sizeof(Value);
    const bool large = image > 32 * call->cache;
    const int64_t room = large ? 8 * call->cache : call->cache * 9 / 16;
    set_group(call->channels);
    while (group > line && (4 * floats() > room || groups * call->images < threads))
      set_group(group > 2 * line ? (group / 2 + line - 1) / line * line : line);
  }
};

// Points that follow each other, read from memory and written to a row of the ring.
struct Points {
  const Value* in;
  int64_t pixel;
  float* out;
  int64_t unit;
  int64_t first, count;
  int64_t channels;
};

template <class Before>
void read_points(const Points& points, const Call& call, Spot start) {
  constexpr int64_t block = 16;  // operands are read for each
  const Points p = points;       // so that no store can be taken to change it
  const int64_t whole = p.channels / kLanes * kLanes, rest = p.channels - whole;
  for (int64_t from = 0; from < p.count; from += block) {
    const int64_t to = from + block < p.count ? from + block : p.count;
    for (int64_t at = 0; at < whole; at += kLanes) {
      const Before before(call, 0, Spot{start.image, start.channel + at, kLanes,
                                        start.points});
      for (int64_t x = from; x < to; ++x)
        store(p.out + x * p.unit + at,
              before(load(p.in + x * p.pixel + at), p.first + x, kLanes));
    }
    if (rest == 0) continue;
    const int lanes = (int)rest;
    const Before before(call, 0, Spot{start.image, start.channel + whole, lanes,
                                      start.points});
    for (int64_t x = from; x < to; ++x)
      store(p.out + x * p.unit + whole,
            before(load_some(p.in + x * p.pixel + whole, lanes), p.first + x, lanes));
  }
}

template <class Before, class After, int Across>
class DepthwiseTask {
 public:
  DepthwiseTask(const Depthwise& plan, int64_t index)
      : plan_(plan), call_(*plan.call), down_(plan.window.down) {
    const int64_t part = index % plan.parts, rest = index / plan.parts;
    start_ = plan.out_height * part / plan.parts;
    end_ = plan.out_height * (part + 1) / plan.parts;
    const int64_t channel = rest % plan.groups * plan.group;
    const int64_t left = call_.channels - channel;
    count_ = left < plan.group ? left : plan.group;
    const int lanes = count_ < kLanes ? (int)count_ : kLanes;
    spot_ = {rest / plan.groups, channel, lanes, call_.height * call_.width};
    made_ = spot_;
    made_.points = plan.out_height * plan.out_width;
    vectors_ = (int)((count_ + kLanes - 1) / kLanes);
    const size_t rows = down_.kernel * sizeof(float*);
    ring_ = (float*)scratch<0>(plan.floats() * 4 + rows);
    rows_ = (const float**)(ring_ + plan.floats());
  }

  void run() {
    pad();
    int64_t loaded = 0;
    for (int64_t y = start_; y < end_; ++y) {
      const int64_t first = y * down_.stride - down_.padding;
      int64_t last = first + down_.reach();
      if (last > call_.height) last = call_.height;
      if (loaded < first) loaded = first;
      for (; loaded < last; ++loaded) load_row(loaded);
      for (int k = 0; k < down_.kernel; ++k)
        rows_[k] = row_of(first + k * down_.dilation);
      make(y);
    }
  }

 private:
  const float* row_of(int64_t y) const {
    const bool inside = y >= 0 && y < call_.height;
    return ring_ + (inside ? y % down_.reach() : down_.reach()) * plan_.row;
  }

  // Zeros beside every row, and one row of them for those above and below the plane.
  void pad() {
    const int64_t ahead = plan_.window.across.padding * plan_.unit;
    const int64_t behind = ahead + call_.width * plan_.unit;
    for (int y = 0; y <= down_.reach(); ++y) {
      float* row = ring_ + y * plan_.row;
      const bool outside = y == down_.reach();
      for (int64_t i = 0; i < (outside ? behind : ahead); i += kLanes)
        store(row + i, Vec{});
      for (int64_t i = behind; i < plan_.row; i += kLanes) store(row + i, Vec{});
    }
  }

  void load_row(int64_t y) {
    Points p;
    p.out = ring_ + y % down_.reach() * plan_.row;
    p.out += plan_.window.across.padding * plan_.unit;
    p.unit = plan_.unit;
    p.pixel = call_.in_pixel;
    p.first = y * call_.width;
    p.count = call_.width;
    p.in = (const Value*)call_.in + spot_.image * call_.in_image + p.first * p.pixel +
           spot_.channel;
    p.channels = count_;
    read_points<Before>(p, call_, spot_);
  }

  void make(int64_t y) {
    const Axis& across = plan_.window.across;
    Line line{};
    line.rows = rows_;
    line.next = plan_.next;
    line.unit = plan_.unit;
    line.down = down_.kernel, line.across = across.kernel;
    line.stride = across.stride, line.dilation = across.dilation;
    line.width = plan_.out_width;
    line.point = y * plan_.out_width;
    line.pixel = call_.out_pixel;
    Value* out = (Value*)call_.out + made_.image * call_.out_image +
                 line.point * line.pixel + made_.channel;
    for (int v = 0; v < vectors_; ++v) {
      const Spot spot = made_.vector(call_, v);
      line.ahead = v * kLanes;
      line.taps = plan_.taps + spot.channel;
      line.out = out + line.ahead;
      line.lanes = spot.lanes;
      make_row<Across>(line, After(call_, plan_.operand + 1, spot));
    }
  }

  const Depthwise& plan_;
  const Call& call_;
  const Axis& down_;
  Spot spot_{}, made_{};  // in planes of the input, and of the output
  int64_t start_, end_, count_;
  int vectors_;
  float* ring_;
  const float** rows_;
};

// Across: the taps of a row where that is known, which makes them faster; else 0.
template <class Before, class After, int Across>
void run_depthwise(const Call& call, Window window, int operand, int threads) {
  const Depthwise plan(call, window, operand, threads);
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (int64_t i = 0; i < plan.tasks(); ++i)
    DepthwiseTask<Before, After, Across>(plan, i).run();
}

}  // namespace memplan
