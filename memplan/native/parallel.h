// A loop over independent pieces of work, on several threads, and the time it takes.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace memplan {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Calls work(i) for all i in [begin, end), in no order, on the calling thread and up
/// to `threads` - 1 others. Rethrows the first exception after all have ended.
template <class Work>
void for_each(std::int32_t begin, std::int32_t end, int threads, const Work& work) {
  std::atomic<std::int32_t> next = begin;
  std::exception_ptr failure;
  std::mutex guard;
  const auto take = [&] {
    try {
      for (std::int32_t i; (i = next.fetch_add(1)) < end;) work(i);
    } catch (...) {
      const std::scoped_lock held(guard);
      if (!failure) failure = std::current_exception();
      next = end;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < std::min(threads, end - begin); ++i) others.emplace_back(take);
    take();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace memplan
