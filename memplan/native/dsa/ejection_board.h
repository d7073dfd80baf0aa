// Blocks where they lie at present, and who shares bytes or time with whom.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/sections.h"

namespace memplan::dsa {

/// What does not change while blocks move: lifespans, sizes, and an index of both.
///
/// Blocks are numbered anew, by birth, so that those alive together lie together.
/// On a periodic clock a lifespan that reaches over its end has end > count.
class Grounds {
 public:
  /// fixed: offsets that are given, -1 for none; empty if all are free.
  Grounds(const Blocks& blocks, std::span<const std::int64_t> fixed);

  std::int32_t size() const { return static_cast<std::int32_t>(bytes.size()); }

  /// Writes to `met` the blocks alive together with `block` that have an offset,
  /// itself not among them; returns how many were looked at. `seen` is scratch, of
  /// as many entries as there are blocks on a periodic clock.
  std::int64_t meeting(std::int32_t block, std::span<const std::int64_t> offsets,
                       std::vector<std::int32_t>& met,
                       std::vector<std::int32_t>& seen) const;

  /// A multiple of the block's alignment, not below `offset`.
  std::int64_t up(std::int64_t offset, std::int32_t block) const {
    if (unit.empty()) return offset;
    return (offset + unit[block] - 1) / unit[block] * unit[block];
  }
  /// One not above it; `offset` is not negative.
  std::int64_t down(std::int64_t offset, std::int32_t block) const {
    return unit.empty() ? offset : offset / unit[block] * unit[block];
  }
  bool is_fixed(std::int32_t block) const { return !stuck.empty() && stuck[block]; }

  std::int32_t count = 0;  // sections
  bool periodic = false;
  std::vector<std::int32_t> start, end;  // in sections
  std::vector<std::int64_t> bytes, unit;  // unit: alignments, empty if all are 1
  std::vector<char> stuck;                // empty if no offset is given
  std::vector<std::int32_t> original;     // the block's number outside

 private:
  void index();
  bool meet(std::int32_t a, std::int32_t b) const;

  // Time in stretches of `width_` sections: who lives on into each of them, and the
  // first that is born in it.
  std::int32_t width_ = 1;
  std::vector<std::int32_t> inherited_, inherited_from_, first_born_;
};

/// Lets all blocks fall onto those below, or rise to those above, up to `roof`: from
/// the nearest on, each to where the next is in its way. None passes another, and
/// those with a given offset stay. Blocks at -1 are not there.
class Gravity {
 public:
  explicit Gravity(const Grounds& grounds);
  void fall(std::span<std::int64_t> offsets);
  void rise(std::span<std::int64_t> offsets, std::int64_t roof);

 private:
  void move(std::span<std::int64_t> offsets, bool upwards, std::int64_t roof);
  std::int64_t highest(std::size_t node, std::int32_t left, std::int32_t right,
                       std::int32_t from, std::int32_t to) const;
  void raise(std::size_t node, std::int32_t left, std::int32_t right,
             std::int32_t from, std::int32_t to, std::int64_t height);

  const Grounds* grounds_;
  std::int32_t leaves_ = 1;
  std::vector<std::int64_t> highest_, flat_;  // of stretches of time; flat_: or -1
  std::vector<std::pair<std::int64_t, std::int32_t>> order_;
};

}  // namespace memplan::dsa
