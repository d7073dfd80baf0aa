// What runs a stack's sequences, and shares the tasks of each out among threads.
#pragma once

#include "stack_pools.h"

namespace memplan {

// How a sequence is cut into tasks and bands, and what its buffers look like.

struct Sequence {
  Vec (*load)(const Loading&);
  int operand;  // the first of the operations before the first pool
  const Step* steps;
  int count;
};

// One step's planes, buffer and rows.
struct Stage {
  const Step* step;
  int64_t height, width, out_height, out_width;  // of planes
  int64_t row;       // floats of a row of its input buffer
  int64_t capacity;  // rows of it
  int64_t ahead, behind;  // floats around them that are read, too
  int64_t keep;      // floats kept from band to band
  const float *shares_down, *shares_across;
  // Of the band being worked on: up to which row there was input, and up to which there
  // is now; up to which row there was output, and up to which there will be.
  int64_t received, wanted, made, to_make;
  bool begun;
};

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t rounded(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

inline int64_t pooled(const Axis& axis, bool ceil, int64_t size) {
  const int64_t room = size + 2 * axis.padding - axis.reach();
  int64_t count = (room + (ceil ? axis.stride - 1 : 0)) / axis.stride + 1;
  if (ceil && (count - 1) * axis.stride >= size + axis.padding) --count;
  return count;
}

// 1 / how many rows, or columns, each window counts.
inline void shares(float* out, int64_t count, const Axis& axis, int64_t size,
                   bool count_padding) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = i * axis.stride - axis.padding;
    const int64_t to = at_most(from + axis.kernel, size + axis.padding);
    const int64_t inside = at_most(to, size) - at_least(from, 0);
    out[i] = 1.0f / (float)(count_padding ? to - from : inside);
  }
}

struct Plan {
  const Call* call;
  const Sequence* sequence;
  const Value* in;
  int64_t in_image, in_pixel;
  int64_t height, width;  // of the input
  Value* out;
  int64_t out_image, out_pixel;
  Stage* stages;
  int count;
  int64_t group;   // channels of a task
  int64_t groups;  // tasks beside each other in an image
  int64_t unit;    // floats of a point in buffers
  int64_t band;    // rows of output at a time
  int64_t parts;   // of the rows
  int64_t out_row;  // floats of a row of results
  int64_t buffers[2], bytes;
};

// Buffers for bands of so many rows of the last step's output.
inline void plan_bands(Plan& plan, int64_t band) {
  plan.band = band;
  plan.buffers[0] = plan.buffers[1] = 0;
  const bool last = band >= plan.stages[plan.count - 1].out_height;  // the only one
  int64_t kept = 0, rows = band, least = 1;
  for (int i = plan.count - 1; i >= 0; --i) {
    Stage& s = plan.stages[i];
    const Axis& down = s.step->shape.down;
    const bool whole = last || rows >= s.out_height;
    rows = at_most(rows, s.out_height);
    least = (at_most(least, s.out_height) - 1) * down.stride + down.reach();
    const int64_t all = (rows - 1) * down.stride + down.reach();
    s.capacity = whole ? all : at_least(rows * down.stride, least);
    rows = s.capacity;
    if (!last) kept += s.keep;
    int64_t& buffer = plan.buffers[i & 1];
    buffer = at_least(buffer, rounded(s.ahead + s.capacity * s.row + s.behind, 16));
  }
  int64_t& results = plan.buffers[plan.count & 1];
  results = at_least(results, rounded(band * plan.out_row + kLanes, 16));
  // Rows that are written are half a page off those that are read: a load would wait
  // for a store before it whose address has the same last twelve bits.
  plan.buffers[0] =
      plan.buffers[0] / 1024 * 1024 + (plan.buffers[0] % 1024 < 544 ? 544 : 1568);
  plan.bytes = 4 * (plan.buffers[0] + plan.buffers[1] + kept);
}

// Bands of fewer rows than this are slow: what is kept from one to the next weighs.
constexpr int64_t kShort = kLast ? 4 : 8;

// With a step or two, channels last, memory matters more than the first cache: it is
// read in order if a task has all channels.
inline int64_t allowed(const Plan& plan) {
  return plan.call->cache * (kLast && plan.count <= 2 ? 8 : 1);
}

// Bytes of the buffers of two steps. What other steps keep is in the second cache.
inline int64_t held(const Plan& plan) {
  return 4 * (plan.buffers[0] + plan.buffers[1]);
}

inline void plan_group(Plan& plan, int64_t group) {
  const int64_t channels = plan.call->channels;
  plan.group = kLast ? group : 1;
  plan.groups = (channels + plan.group - 1) / plan.group;
  plan.unit = kLast ? rounded(group, kLanes) : 1;
  for (int i = 0; i < plan.count; ++i) {
    Stage& s = plan.stages[i];
    const Axis& across = s.step->shape.across;
    const int64_t end = (s.out_width - 1) * across.stride + across.reach();
    const int64_t beside = at_least(across.padding, end - across.padding - s.width);
    const int64_t columns = s.width + beside;
    s.row = kLast ? columns * plan.unit : rounded(columns, kLanes);
    s.ahead = rounded(across.padding * plan.unit, 16);
    s.behind = kLast ? 0 : across.reach() + kLanes * (across.stride + 1);
    const int64_t vectors = kLast ? s.out_width * plan.unit / kLanes
                                  : (s.out_width + kLanes - 1) / kLanes;
    s.keep = vectors * s.step->shape.down.keep() * kLanes;
  }
  const Stage& last = plan.stages[plan.count - 1];
  const int64_t height = last.out_height;
  plan.out_row = last.out_width * plan.unit;
  int64_t band = height;
  plan_bands(plan, band);
  while (held(plan) > allowed(plan) && band > kShort) {
    band = at_least((band + 1) / 2, kShort);
    plan_bands(plan, band);
  }
}

// Groups of channels as large as fit the cache, and enough tasks for the threads.
inline void plan_tasks(Plan& plan, int threads) {
  constexpr int64_t line = 64 / sizeof(Value) > kLanes ? 64 / sizeof(Value) : kLanes;
  const int64_t images = plan.call->images;
  int64_t group = kLast ? rounded(plan.call->channels, kLanes) : 1;
  plan_group(plan, group);
  while (group > line &&
         (held(plan) > allowed(plan) || plan.groups * images < threads)) {
    group = at_least(rounded((group + 1) / 2, kLanes), line);
    plan_group(plan, group);
  }
  const int64_t tasks = plan.groups * images;
  plan.parts = 1;
  if (tasks > 0 && tasks < threads)
    plan.parts = at_least(at_most((threads + tasks - 1) / tasks,
                                  plan.stages[plan.count - 1].out_height / kShort),
                          1);
}

// Planes and tables of every step; the number of floats that the tables take.
inline int64_t plan_stages(Plan& plan, float* tables) {
  int64_t height = plan.height, width = plan.width, used = 0;
  for (int i = 0; i < plan.count; ++i) {
    Stage& s = plan.stages[i];
    const Step& step = plan.sequence->steps[i];
    const Shape& shape = step.shape;
    s = {};
    s.step = &step;
    s.height = height;
    s.width = width;
    s.out_height = height = pooled(shape.down, shape.ceil, s.height);
    s.out_width = width = pooled(shape.across, shape.ceil, s.width);
    if (shape.max || shape.even()) continue;
    if (tables != nullptr) {
      float* down = tables + used;
      float* across = down + rounded(height, 16);
      shares(down, height, shape.down, s.height, shape.count_padding);
      shares(across, width, shape.across, s.width, shape.count_padding);
      s.shares_down = down;
      s.shares_across = across;
    }
    used += rounded(height, 16) + rounded(width, 16);
  }
  return used;
}

// A sequence of steps, depth-first: bands of rows go through all of them, one band after
// the other, from the top of a plane to its bottom. Between two steps a band lies in one
// of two buffers of the thread; rows that the next band's windows look at, too, are kept
// by each step as what they were joined to. So nothing is computed twice, but where a
// plane is cut into parts for want of other work for the threads.
//
// Tasks are (image, group of channels, part of the rows). Each writes the outputs of its
// own channels and rows and no others; what it reads is written by none. No two tasks
// share memory that is written, and so there is nothing to race for.

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

// One sequence, its tasks shared out among threads.
inline void run_sequence(Plan& plan, int threads) {
  const size_t stages = rounded(plan.count * sizeof(Stage), 64);
  plan.stages = (Stage*)scratch<1>(stages);
  const int64_t tables = plan_stages(plan, nullptr);
  if (tables > 0) {
    char* memory = scratch<1>(stages + (tables + kLanes) * 4);
    plan.stages = (Stage*)memory;
    plan_stages(plan, (float*)(memory + stages));
  }
  plan_tasks(plan, threads);
  const int64_t tasks = plan.call->images * plan.groups * plan.parts;
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
#endif
  for (int64_t i = 0; i < tasks; ++i) Task(plan, i).run();
}

// Sequences one after the other; what passes between them takes turns in two places.
inline void run_sequences(const Call& call, const Sequence* sequences, int count,
                          int threads) {
  int64_t height = call.height, width = call.width, sizes[2] = {0, 0};
  for (int pass = 0; pass < 2; ++pass) {  // the first finds where the second place is
    Value* places[2] = {(Value*)call.between, (Value*)call.between + sizes[0]};
    Plan plan{};
    plan.call = &call;
    plan.in = (const Value*)call.in;
    plan.in_image = call.in_image;
    plan.in_pixel = call.in_pixel;
    height = call.height;
    width = call.width;
    for (int i = 0; i < count; ++i) {
      plan.sequence = &sequences[i];
      plan.count = sequences[i].count;
      plan.height = height;
      plan.width = width;
      for (int k = 0; k < plan.count; ++k) {
        const Shape& shape = sequences[i].steps[k].shape;
        height = pooled(shape.down, shape.ceil, height);
        width = pooled(shape.across, shape.ceil, width);
      }
      const bool last = i + 1 == count;
      plan.out_image = last ? call.out_image : call.channels * height * width;
      plan.out_pixel = last ? call.out_pixel : call.channels;
      plan.out = last ? (Value*)call.out : places[i & 1];
      if (pass == 1) {
        run_sequence(plan, threads);
      } else if (!last) {
        const int64_t size = rounded(call.images * plan.out_image, 64);
        sizes[i & 1] = at_least(sizes[i & 1], size);
      }
      plan.in = plan.out;
      plan.in_image = plan.out_image;
      plan.in_pixel = plan.out_pixel;
    }
  }
}

}  // namespace memplan
