#include "dsa/sections.h"

#include <algorithm>
#include <stdexcept>

#include "dsa/radix.h"

namespace memplan::dsa {
namespace {

constexpr std::size_t kMostBuffers = std::size_t{1} << 29;  // 4 n must fit in int32

}  // namespace

Sections cut_into_sections(std::span<const std::int64_t> lower,
                           std::span<const std::int64_t> upper, std::int64_t period) {
  const std::size_t n = lower.size();
  if (n > kMostBuffers) throw std::length_error("more than 2^29 buffers");

  std::vector<std::uint64_t> times;
  times.reserve(2 * n + 1);
  times.assign(lower.begin(), lower.end());
  for (const std::int64_t t : upper) {
    times.push_back(period > 0 && t >= period ? t - period : t);
  }
  if (period > 0) times.push_back(0);

  Sections sections{std::vector<std::int32_t>(n), std::vector<std::int32_t>(n), 0};
  std::int32_t moment = -1;
  std::uint64_t last = 0;
  for (const std::int32_t i : stable_order(times)) {
    if (moment < 0 || times[i] != last) ++moment;
    last = times[i];
    const std::size_t k = static_cast<std::size_t>(i);
    if (k < n) {
      sections.start[k] = moment;
    } else if (k < 2 * n) {
      sections.end[k - n] = moment;
    }
  }
  // Sections lie between moments; on a circle there are as many as moments.
  sections.count = period > 0 ? moment + 1 : std::max(moment, 0);
  if (period > 0) {
    for (std::size_t i = 0; i < n; ++i) {
      if (upper[i] >= period) sections.end[i] += sections.count;
    }
  }
  return sections;
}

}  // namespace memplan::dsa
