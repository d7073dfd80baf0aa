// Tasks handed to threads as they ask for them.
#pragma once

#include <atomic>
#include <cstdint>

namespace memplan {

template <typename Body>
inline void parallel(int64_t tasks, int threads, const Body& body) {
  if (tasks < threads) threads = static_cast<int>(tasks);
#if defined(_OPENMP)
  if (threads > 1) {
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      body(task);
    return;
  }
#endif
  for (int64_t task = 0; task < tasks; ++task) body(task);
}

}  // namespace memplan
