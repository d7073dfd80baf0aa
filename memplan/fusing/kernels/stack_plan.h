// How a sequence is cut into tasks and bands, and what its buffers look like.
#pragma once

#include "stack_load.h"

namespace memplan {

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

}  // namespace memplan
