// The inner loops of `Bounds`, built for several kinds of processor.
#include <algorithm>

#include "dsa/exact_bounds.h"

// Dispatch at load time needs ifunc, which sanitizers cannot start up with.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) &&                  \
    !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                           \
    !defined(__SANITIZE_THREAD__)
#define MEMPLAN_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MEMPLAN_CLONES
#endif

namespace memplan::dsa {
namespace {

template <class V>
[[gnu::always_inline]] inline Lowest<V> lowest(const std::int32_t* start,
                                               const std::int32_t* end, const V* offset,
                                               const V* size, std::int32_t count,
                                               std::int32_t from, std::int32_t to,
                                               V none) {
  V least = none, top = none;
  for (std::int32_t i = 0; i < count; ++i) {
    const bool meets = (start[i] < to) & (from < end[i]);
    least = std::min(least, meets ? offset[i] : none);
    top = std::min(top, meets ? offset[i] + size[i] : none);
  }
  return {least, top};
}

template <class V>
[[gnu::always_inline]] inline V add(V* values, std::int32_t count, V amount) {
  V most = 0;
  for (std::int32_t s = 0; s < count; ++s) {
    values[s] += amount;
    most = std::max(most, values[s]);
  }
  return most;
}

template <class V>
[[gnu::always_inline]] inline void lowest_two(V* __restrict first, V* __restrict second,
                                              V* __restrict owner, std::int32_t count,
                                              V offset, V who) {
  for (std::int32_t s = 0; s < count; ++s) {
    const V before = first[s];
    second[s] = std::min(second[s], std::max(before, offset));
    owner[s] = offset < before ? who : owner[s];
    first[s] = std::min(before, offset);
  }
}

template <class V>
[[gnu::always_inline]] inline V highest(const V* floor, const V* remaining,
                                        std::int32_t count, V least) {
  V most = 0;
  for (std::int32_t s = 0; s < count; ++s) {
    const V sum = std::max(floor[s], least) + remaining[s];
    most = std::max(most, remaining[s] ? sum : V{0});
  }
  return most;
}

}  // namespace

#define MEMPLAN_EXACT_KERNELS(V)                                                       \
  MEMPLAN_CLONES Lowest<V> lowest_between(                                             \
      const std::int32_t* start, const std::int32_t* end, const V* offset,             \
      const V* size, std::int32_t count, std::int32_t from, std::int32_t to, V none) { \
    return lowest(start, end, offset, size, count, from, to, none);                    \
  }                                                                                    \
  MEMPLAN_CLONES V add_to_all(V* values, std::int32_t count, V amount) {               \
    return add(values, count, amount);                                                 \
  }                                                                                    \
  MEMPLAN_CLONES void two_lowest(V* first, V* second, V* owner, std::int32_t count,    \
                                 V offset, V who) {                                    \
    lowest_two(first, second, owner, count, offset, who);                              \
  }                                                                                    \
  MEMPLAN_CLONES V highest_sum(const V* floor, const V* remaining, std::int32_t count, \
                               V least) {                                              \
    return highest(floor, remaining, count, least);                                    \
  }

MEMPLAN_EXACT_KERNELS(std::int32_t)
MEMPLAN_EXACT_KERNELS(std::int64_t)

}  // namespace memplan::dsa
