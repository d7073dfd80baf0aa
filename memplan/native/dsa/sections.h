// Time, cut at every moment when some buffer is allocated or freed; and sorting.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace memplan::dsa {

/// Lifespans counted in sections, the stretches of time in which nothing changes.
///
/// Buffers collide in sections exactly if they collide in time. Buffer i lives in
/// the sections [start[i], end[i]). On a periodic clock section k + count is
/// section k again; start is below count, and end above it where a lifespan
/// reaches over the end of the period.
struct Sections {
  std::vector<std::int32_t> start;
  std::vector<std::int32_t> end;
  std::int32_t count = 0;
};

/// Cuts the half-open lifespans [lower, upper) into sections.
///
/// A `period` of 0 means a linear clock. Otherwise 0 <= lower < period,
/// upper - lower <= period, and the period itself begins with a section of its own.
/// Times are not negative; at most 2^29 buffers. Throws std::length_error for more.
Sections cut_into_sections(std::span<const std::int64_t> lower,
                           std::span<const std::int64_t> upper, std::int64_t period);

/// The stable ascending order of `keys`: the k-th entry is the index of the k-th
/// smallest key, and equal keys keep their order. At most 2^31 keys.
std::vector<std::int32_t> stable_order(std::span<const std::uint64_t> keys);

}  // namespace memplan::dsa
