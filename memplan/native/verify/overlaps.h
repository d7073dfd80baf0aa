// Which rectangles of time and addresses overlap: what a plan is verified with.
//
// Shares no code with the solvers, so that a mistake of theirs is not made twice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace memplan::verify {

/// n pieces: half-open lifespans, and bytes [begin, end), which are not empty. A piece
/// with lower > upper is alive from the clock's start to upper, and again from lower.
struct Pieces {
  std::span<const std::int64_t> lower, upper, begin, end;
};

/// A newcomer that shares bytes with a piece alive since before, at a time: -1 for
/// those that are alive when the clock starts.
struct Clash {
  std::int64_t newcomer, there, time;
};

/// Sweeps the clock once: at each tick the frees, then the allocations, by index. A
/// newcomer that touches pieces that are there clashes with each of them, and is kept
/// out. Hence what is there is disjoint, and a newcomer can only touch its neighbours.
/// Empty if and only if no two pieces overlap.
std::vector<Clash> overlaps(const Pieces& pieces);

}  // namespace memplan::verify
