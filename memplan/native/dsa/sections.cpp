#include "dsa/sections.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>

namespace memplan::dsa {
namespace {

constexpr std::size_t kMostBuffers = std::size_t{1} << 29;  // 4 n must fit in int32

constexpr int kDigitBits = 11;
constexpr std::size_t kBuckets = std::size_t{1} << kDigitBits;

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

std::vector<std::int32_t> stable_order(std::span<const std::uint64_t> keys) {
  std::vector<std::int32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  if (keys.empty()) return order;

  std::uint64_t varying = 0;
  for (const std::uint64_t key : keys) varying |= key ^ keys.front();

  std::vector<std::int32_t> next(keys.size());
  std::array<std::size_t, kBuckets> begin;
  for (int shift = 0; shift < 64; shift += kDigitBits) {
    const auto digit = [&](std::uint64_t key) { return (key >> shift) % kBuckets; };
    if (digit(varying) == 0) continue;  // all keys agree here: nothing to sort by
    begin.fill(0);
    for (const std::uint64_t key : keys) ++begin[digit(key)];
    std::exclusive_scan(begin.begin(), begin.end(), begin.begin(), std::size_t{0});
    for (const std::int32_t i : order) next[begin[digit(keys[i])]++] = i;
    order.swap(next);
  }
  return order;
}

}  // namespace memplan::dsa
