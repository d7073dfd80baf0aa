// The inner loops of the exact search's bounds, built for several kinds of processor.
#pragma once

#include <cstdint>

namespace memplan::dsa {

/// The least offset and the least top among some buffers.
template <class V>
struct Lowest {
  V offset, top;
};

/// lowest_between: of `count` buffers with lifespans [start, end), those that meet the
///   lifespan [from, to): the least offset and the least offset + size; or `none`.
/// add_to_all: adds `amount` to each, and returns the largest sum.
/// two_lowest: puts `offset` of buffer `who` among the two lowest of each section.
/// highest_sum: the largest max(floor, least) + remaining where something remains.
#define MEMPLAN_EXACT_KERNELS(V)                                                       \
  Lowest<V> lowest_between(const std::int32_t* start, const std::int32_t* end,         \
                           const V* offset, const V* size, std::int32_t count,         \
                           std::int32_t from, std::int32_t to, V none);                \
  V add_to_all(V* values, std::int32_t count, V amount);                               \
  void two_lowest(V* first, V* second, V* owner, std::int32_t count, V offset, V who); \
  V highest_sum(const V* floor, const V* remaining, std::int32_t count, V least);

MEMPLAN_EXACT_KERNELS(std::int32_t)
MEMPLAN_EXACT_KERNELS(std::int64_t)
#undef MEMPLAN_EXACT_KERNELS

}  // namespace memplan::dsa
