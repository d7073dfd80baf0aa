// A sequence of steps, depth-first: bands of rows go through all of them, one band after
// the other, from the top of a plane to its bottom. Between two steps a band lies in one
// of two buffers of the thread; rows that the next band's windows look at, too, are kept
// by each step as what they were joined to. So nothing is computed twice, but where a
// plane is cut into parts for want of other work for the threads.
//
// Tasks are (image, group of channels, part of the rows). Each writes the outputs of its
// own channels and rows and no others; what it reads is written by none. No two tasks
// share memory that is written, and so there is nothing to race for.
#pragma once

#include "stack_plan.h"

namespace memplan {

class Task {
 public:
  Task(const Plan& plan, int64_t index)
      : plan_(plan),
        stages_((Stage*)scratch<0>(head(plan) + plan.bytes)),
        index_(index) {}

  void run() {
    const Plan& plan = plan_;
    const int last = plan.count - 1;
    const int64_t part = index_ % plan.parts, rest = index_ / plan.parts;
    const int64_t channel = rest % plan.groups * plan.group;
    const int64_t left = plan.call->channels - channel;
    const int64_t start = height() * part / plan.parts;
    const int64_t end = height() * (part + 1) / plan.parts;
    spot_ = {rest / plan.groups, channel, kLast && left < kLanes ? (int)left : kLanes,
             0};
    vectors_ = kLast ? (int)((at_most(left, plan.group) + kLanes - 1) / kLanes) : 1;
    float* base = (float*)((char*)stages_ + head(plan));
    buffers_[0] = base;
    buffers_[1] = base + plan.buffers[0];
    __builtin_memcpy(stages_, plan.stages, plan.count * sizeof(Stage));
    begin(start);
    for (int64_t done = start; done < end; done = stages_[last].made) {
      aim(done, end);
      band(stages_[last].to_make < end);
    }
  }

 private:
  int64_t height() const { return plan_.stages[plan_.count - 1].out_height; }
  static size_t head(const Plan& plan) {
    return rounded(plan.count * sizeof(Stage), 64);
  }

  // Nothing made yet of the rows that the output from row `start` on needs.
  void begin(int64_t start) {
    for (int i = plan_.count - 1; i >= 0; --i) {
      Stage& s = stages_[i];
      const Axis& down = s.step->shape.down;
      s.made = start;
      s.received = start * down.stride - down.padding;
      start = at_least(s.received, 0);
    }
  }

  // How far every step gets with the next band: as far as buffers reach.
  void aim(int64_t done, int64_t end) {
    int64_t rows = at_most(plan_.band, end - done);
    for (; !reaches(done + rows) && rows > 1; rows = rows / 2) {
    }
  }

  bool reaches(int64_t target) {
    bool fits = true;
    for (int i = plan_.count - 1; i >= 0; --i) {
      Stage& s = stages_[i];
      const Axis& down = s.step->shape.down;
      s.to_make = at_least(target, s.made);
      s.wanted = s.received;
      if (s.to_make > s.made)
        s.wanted = (s.to_make - 1) * down.stride - down.padding + down.reach();
      fits = fits && s.wanted - s.received <= s.capacity;
      target = at_most(s.wanted, s.height);
    }
    return fits;
  }

  void band(bool save) {
    float* kept = buffers_[1] + plan_.buffers[1];
    receive(stages_[0]);
    announce(stages_[plan_.count - 1]);
    for (int i = 0; i < plan_.count; ++i) {
      Stage& s = stages_[i];
      claim(i);
      const bool last = i + 1 == plan_.count;
      Rows r{};
      r.call = plan_.call;
      r.operand = s.step->operand;
      r.spot = spot_;
      r.spot.points = s.out_height * s.out_width;
      r.vectors = vectors_;
      r.point = plan_.unit;
      r.in = buffers_[i & 1] + s.ahead;
      r.in_row = s.row;
      const Axis& down = s.step->shape.down;
      r.resume = s.begun && down.keep() > 0;
      if (!r.resume) r.skip = s.made * down.stride - down.padding - s.received;
      r.save = save;
      r.kept = kept;
      r.first = s.made;
      r.count = s.to_make - s.made;
      r.width = s.out_width;
      r.shares_down = s.shares_down;
      r.shares_across = s.shares_across;
      if (last) {
        r.out = buffers_[plan_.count & 1];
        r.out_row = plan_.out_row;
        r.packed = true;
      } else {
        surround(stages_[i + 1], i + 1);
        const Stage& next = stages_[i + 1];
        r.out =
            buffers_[(i + 1) & 1] + next.ahead + (s.made - next.received) * next.row;
        r.out_row = next.row;
        r.outside = next.step->shape.outside();
      }
      if (r.count > 0) s.step->rows[exact_](r);
      if (last) send(r);
      prefetch(i);
      s.begun = s.begun || r.count > 0;
      if (plan_.band < height()) kept += s.keep;
      s.made = s.to_make;
      s.received = s.wanted;
    }
  }

  // Results of a band to memory, in order, for columns were made one by one.
  void send(const Rows& r) {
    const int64_t channel = spot_.channel, points = r.count * r.width;
    Value* out = plan_.out + spot_.image * plan_.out_image;
    if constexpr (!kLast) {
      put(out + channel * r.spot.points + r.first * r.width, r.out, points);
      return;
    }
    const int64_t pixel = plan_.out_pixel, unit = plan_.unit;
    const int64_t count = at_most(plan_.call->channels - channel, plan_.group);
    out += channel + r.first * r.width * pixel;
    if (count == unit && count == pixel) {
      put(out, r.out, points * unit);
    } else if (count == kLanes) {
      for (int64_t i = 0; i < points; ++i)
        store(out + i * pixel, load(r.out + i * unit));
    } else {
      for (int64_t i = 0; i < points; ++i)
        put(out + i * pixel, r.out + i * unit, count);
    }
  }

  static MEMPLAN_INLINE void put(Value* out, const float* from, int64_t count) {
    if constexpr (sizeof(Value) == sizeof(float)) {
      if (count >= 256) {
        __builtin_memcpy(out, from, count * sizeof(float));
        return;
      }
    }
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(out + i, load(from + i));
    if (i < count) store_some(out + i, load(from + i), (int)(count - i));
  }

  // While a step is computed the input of the next band, or task, comes nearer.
  void prefetch(int step) {
    const int64_t from = coming_ * step / plan_.count;
    const int64_t to = coming_ * (step + 1) / plan_.count;
    for (int64_t i = from; i < to; ++i) __builtin_prefetch(next_ + i * 64, 0, 2);
  }

  // Planes: while steps are computed, the lines that the band's results go to come
  // nearer, to be written; else sending them waits for each. Channels last, no
  // difference was measured.
  void announce(const Stage& last) {
    leaving_ = 0;
    if constexpr (kLast) return;
    const int64_t row = last.out_width * (int64_t)sizeof(Value);
    target_ = (const char*)(plan_.out + spot_.image * plan_.out_image) +
              (spot_.channel * last.out_height + last.made) * row;
    leaving_ = (last.to_make - last.made) * row / 64;
  }

  void claim(int step) {
    const int64_t from = leaving_ * step / plan_.count;
    const int64_t to = leaving_ * (step + 1) / plan_.count;
    for (int64_t i = from; i < to; ++i) __builtin_prefetch(target_ + i * 64, 1, 2);
  }

  // Rows of a buffer that lie above and below the plane, and what lies ahead of it.
  void surround(const Stage& s, int i) {
    float* rows = buffers_[i & 1] + s.ahead;
    const Vec outside = splat(s.step->shape.outside());
    for (int64_t x = -s.ahead; x < 0; x += kLanes) store(rows + x, outside);
    for (int64_t y = s.received; y < s.wanted; ++y)
      if (y < 0 || y >= s.height)
        for (int64_t x = 0; x < s.row; x += kLanes)
          store(rows + (y - s.received) * s.row + x, outside);
  }

  void receive(const Stage& s) {
    surround(s, 0);
    Loading l{};
    l.call = plan_.call;
    l.operand = plan_.sequence->operand;
    l.spot = spot_;
    l.spot.points = s.height * s.width;
    l.vectors = vectors_;
    l.unit = plan_.unit;
    l.memory = plan_.in + spot_.image * plan_.in_image +
               spot_.channel * (kLast ? 1 : l.spot.points);
    l.pixel = kLast ? plan_.in_pixel : 1;
    l.width = s.width;
    l.from = at_least(s.received, 0);
    l.to = at_most(s.wanted, s.height);
    l.out = buffers_[0] + s.ahead + (l.from - s.received) * s.row;
    l.out_row = s.row;
    l.outside = s.step->shape.outside();
    coming_ = 0;
    if (l.from >= l.to) return;
    if (!kLast || plan_.groups == 1) {
      const int64_t row = s.width * (kLast ? l.pixel : 1) * (int64_t)sizeof(Value);
      next_ = (const char*)l.memory + l.to * row;
      coming_ = (l.to - l.from) * row / 64;
    }
    const Vec most = plan_.sequence->load(l);
    if (!exact_) exact_ = !stays_finite(most);
  }

  // Whether no step can bring up a NaN from values of at most this magnitude.
  bool stays_finite(Vec most) {
    const Ints grown = bits(most) > bits(most_);
    bool any = false;
    for (int i = 0; i < kLanes; ++i) any |= grown[i] != 0;
    if (!any) return true;
    most_ = floats(grown ? bits(most) : bits(most_));
    Vec worst = most_;
    for (int v = 0; v < vectors_; ++v) {
      Spot spot = spot_.vector(*plan_.call, v);
      Vec bound = most_;
      for (int i = 0; i < plan_.count; ++i) {
        const Step& step = *stages_[i].step;
        spot.points = stages_[i].out_height * stages_[i].out_width;
        step.bound(*plan_.call, step.operand, spot, bound, worst);
      }
    }
    const Ints small = worst < 1e38f;  // not so for NaN
    for (int i = 0; i < kLanes; ++i)
      if (small[i] == 0) return false;
    return true;
  }

  const Plan& plan_;
  Stage* stages_;
  int64_t index_;
  Spot spot_{};
  int vectors_ = 1;
  float* buffers_[2] = {};
  bool exact_ = false;
  const char* next_ = nullptr;  // memory that is read next, and lines of it
  int64_t coming_ = 0;
  const char* target_ = nullptr;  // memory that is written next, and lines of it
  int64_t leaving_ = 0;
  Vec most_{};
};

}  // namespace memplan
