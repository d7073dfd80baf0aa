// First fit into gaps, around blocks whose offsets are given.
#pragma once

#include <cstdint>
#include <span>

#include "dsa/bestfit.h"

namespace memplan::dsa {

/// Places blocks one by one, each at the lowest aligned offset where it touches no
/// block placed before it that is alive at the same time.
///
/// offsets: in and out; an entry that is not negative is given and stays. Then come
/// the blocks of `order`, none of which may be given. One whose top would exceed
/// `capacity` bytes is left where it was, at -1, and the next is tried.
///
/// O(n^2) time at worst with a small constant, O(n) memory.
void fill_gaps(const Blocks& blocks, std::span<const std::int32_t> order,
               std::int64_t capacity, std::span<std::int64_t> offsets);

}  // namespace memplan::dsa
