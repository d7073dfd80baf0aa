// Work on several threads, and the time it takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace memplan::dsa {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Calls work(k) for each k below `threads`, each on a thread, 0 on the caller's. Once
/// all have returned, rethrows what the first of them threw: it may be out of memory.
template <class Work>
void on_threads(std::size_t threads, const Work& work) {
  std::vector<std::exception_ptr> failures(threads);
  {
    std::vector<std::jthread> helpers;
    const auto guarded = [&](std::size_t k) {
      try {
        work(k);
      } catch (...) {
        failures[k] = std::current_exception();
      }
    };
    for (std::size_t k = 1; k < threads; ++k) helpers.emplace_back(guarded, k);
    guarded(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace memplan::dsa
