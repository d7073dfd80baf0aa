#include "dsa/radix.h"

#include <array>
#include <numeric>

namespace memplan::dsa {
namespace {

constexpr int kDigitBits = 11;
constexpr std::size_t kBuckets = std::size_t{1} << kDigitBits;

}  // namespace

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
