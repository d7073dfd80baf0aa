// Stable sorting by 64-bit keys, in time linear in their number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace memplan::dsa {

/// The stable ascending order of `keys`: the k-th entry is the index of the k-th
/// smallest key, and equal keys keep their order. At most 2^31 keys.
std::vector<std::int32_t> stable_order(std::span<const std::uint64_t> keys);

}  // namespace memplan::dsa
