// What runs a stack's sequences, and shares the tasks of each out among threads.
#pragma once

#include "stack_bands.h"

namespace memplan {

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
