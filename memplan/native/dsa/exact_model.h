// What the exact search is told about a packing problem.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsa/bestfit.h"

namespace memplan::dsa {

/// The prunings of the exact search, each of which may be left out. All are sound: with
/// any of them off the answers are the same, and the search only takes longer.
///
/// canonical: a packing is built bottom up, by offset; of what begins at the same
///   offset, what was tried there in vain does not lie there. Without it dominance,
///   monotone, hatless, stranded and memo have no ground and are off too.
/// dominance: nothing is placed where another buffer would fit wholly beneath.
/// sections: in every section, what is placed and what remains must fit.
/// unallocated: what remains in a section begins at its least possible offset, and
///   buffers with a higher one stack up above that (scheduling's release dates).
/// monotone: nothing is placed below the last placement.
/// hatless: what was placed without a waiting buffer above it need not be put off.
/// stranded: a buffer that was passed over must be lifted by a waiting neighbour,
///   one that begins beneath its top; it will then lie on top of one.
/// decomposition: parts of time that no waiting buffer connects are solved apart.
/// ranking: what falls apart is ranked anew, by what waits in the part.
/// tightest: where something must lie in a section next, only that is tried.
/// forced: where one buffer alone can lie low enough in a section, it does, and what
///   does not fit beneath it lies above.
/// symmetry: of buffers that are alike, the first lies lowest.
/// memo: a state that failed before fails again.
struct Rules {
  bool canonical = true, dominance = true, sections = true, unallocated = true,
       monotone = true, hatless = true, stranded = true, decomposition = true,
       ranking = true, tightest = true, forced = true, symmetry = true, memo = true;

  /// Switches one rule by its name; false if there is no such rule.
  bool set(std::string_view name, bool on);

  /// Without the rules whose ground another one is that is off.
  Rules grounded() const;
};

/// A problem for the exact search, in the buffers' own order.
///
/// Sizes, alignments and fixed offsets (-1: free) in any unit; lifespans as in
/// Blocks, on its clock. Every span has n entries.
///
/// beyond: how far each may reach above the capacity, for padding that nothing lies
/// upon is part of the size, and may stand out; empty for 0.
struct Instance {
  Blocks blocks;
  std::span<const std::int64_t> fixed, beyond;
};

/// The buffers of an Instance, lifespans in sections. V holds sizes.
///
/// Buffer k lives in the sections [start, end) and [start_again, end_again), the
/// second of which is empty unless its lifespan reaches over the end of the period.
template <class V>
struct Model {
  std::int32_t n = 0, sections = 0;
  bool periodic = false, aligned = false, any_fixed = false;
  std::vector<V> size, align, fixed, beyond;
  V most_beyond = 0;
  std::vector<std::int64_t> life;  // in ticks
  std::vector<std::int32_t> start, end, start_again, end_again;
  // The one before it, and after it, that is alike, or -1.
  std::vector<std::int32_t> twin, next_twin;
  // Those alive at the same time, ascending.
  std::vector<std::vector<std::int32_t>> neighbours;

  bool overlap(std::int32_t i, std::int32_t k) const {
    const auto meet = [](auto a, auto b, auto c, auto d) { return a < d && c < b; };
    return meet(start[i], end[i], start[k], end[k]) ||
           meet(start[i], end[i], start_again[k], end_again[k]) ||
           meet(start_again[i], end_again[i], start[k], end[k]) ||
           meet(start_again[i], end_again[i], start_again[k], end_again[k]);
  }
};

template <class V>
Model<V> model_of(const Instance& instance);

extern template Model<std::int32_t> model_of(const Instance&);
extern template Model<std::int64_t> model_of(const Instance&);

}  // namespace memplan::dsa
