// Blocks where they lie at present, and who shares bytes or time with whom.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
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
  Grounds(const Blocks& blocks, std::span<const std::int64_t> fixed)
      : periodic(blocks.period > 0), original(blocks.size.size()) {
    const Sections sections =
        cut_into_sections(blocks.lower, blocks.upper, blocks.period);
    count = sections.count;
    std::iota(original.begin(), original.end(), 0);
    std::ranges::stable_sort(original, {}, [&](auto i) { return sections.start[i]; });
    for (const std::int32_t i : original) {
      start.push_back(sections.start[i]);
      end.push_back(sections.end[i]);
      bytes.push_back(blocks.size[i]);
      if (!blocks.alignment.empty()) unit.push_back(blocks.alignment[i]);
      if (!fixed.empty()) stuck.push_back(fixed[i] >= 0);
    }
    index();
  }

  std::int32_t size() const { return static_cast<std::int32_t>(bytes.size()); }

  /// Writes to `met` the blocks alive together with `block` that have an offset,
  /// itself not among them; returns how many were looked at. `seen` is scratch, of
  /// as many entries as there are blocks on a periodic clock.
  std::int64_t meeting(std::int32_t block, std::span<const std::int64_t> offsets,
                       std::vector<std::int32_t>& met,
                       std::vector<std::int32_t>& seen) const {
    met.clear();
    std::int64_t looked = 0;
    const std::int32_t from = start[block], to = end[block], n = size();
    if (!periodic) {
      const std::int32_t b = from / width_;
      for (auto k = inherited_from_[b]; k < inherited_from_[b + 1]; ++k) {
        const std::int32_t i = inherited_[k];
        if (end[i] > from && offsets[i] >= 0 && i != block) met.push_back(i);
      }
      std::int32_t i = first_born_[b];
      looked = inherited_from_[b + 1] - inherited_from_[b] - i;
      for (; i < n && start[i] < to; ++i) {
        if (end[i] > from && offsets[i] >= 0 && i != block) met.push_back(i);
      }
      return looked + i;
    }
    seen.resize(n, -1);
    const auto look = [&](std::int32_t i) {
      ++looked;
      if (offsets[i] < 0 || i == block || seen[i] == block || !meet(block, i)) return;
      seen[i] = block;
      met.push_back(i);
    };
    const auto look_within = [&](std::int32_t left, std::int32_t right) {
      const std::int32_t b = left / width_;
      for (auto k = inherited_from_[b]; k < inherited_from_[b + 1]; ++k) {
        look(inherited_[k]);
      }
      for (auto i = first_born_[b]; i < n && start[i] < right; ++i) look(i);
    };
    look_within(from, std::min(to, count));
    if (to > count) look_within(0, to - count);
    for (const std::int32_t i : met) seen[i] = -1;
    return looked;
  }

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
  // Blocks listed among those that live on, in all stretches of time: so many for each.
  static constexpr std::int64_t kInherited = 16;

  void index() {
    const std::int32_t n = size();
    // A block whose life reaches over the clock's end lives on into the beginning.
    const auto each_inherited = [&](std::int32_t i, auto&& visit) {
      const std::int32_t last = std::min(end[i], count) - 1;
      for (std::int32_t b = start[i] / width_ + 1; b <= last / width_; ++b) visit(b);
      for (std::int32_t b = 0; b * width_ < end[i] - count; ++b) visit(b);
    };
    for (;; width_ *= 2) {
      std::int64_t inherited = 0;
      for (std::int32_t i = 0; i < n; ++i) {
        const std::int32_t last = std::min(end[i], count) - 1;
        inherited += last / width_ - start[i] / width_;
        inherited += (std::max(end[i] - count, 0) + width_ - 1) / width_;
      }
      if (inherited <= kInherited * n || width_ >= count) break;
    }
    const std::int32_t stretches = count / width_ + 1;
    inherited_from_.assign(stretches + 1, 0);
    for (std::int32_t i = 0; i < n; ++i) {
      each_inherited(i, [&](std::int32_t b) { ++inherited_from_[b + 1]; });
    }
    std::partial_sum(inherited_from_.begin(), inherited_from_.end(),
                     inherited_from_.begin());
    inherited_.resize(inherited_from_.back());
    std::vector<std::int32_t> next = inherited_from_;
    for (std::int32_t i = 0; i < n; ++i) {
      each_inherited(i, [&](std::int32_t b) { inherited_[next[b]++] = i; });
    }
    for (std::int32_t b = 0, i = 0; b < stretches; ++b) {
      while (i < n && start[i] < b * width_) ++i;
      first_born_.push_back(i);
    }
  }

  bool meet(std::int32_t a, std::int32_t b) const {
    const auto overlap = [&](std::int32_t shift) {
      return start[a] < end[b] + shift && start[b] + shift < end[a];
    };
    return overlap(0) || overlap(count) || overlap(-count);
  }

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
  explicit Gravity(const Grounds& grounds)
      : grounds_(&grounds),
        leaves_(static_cast<std::int32_t>(
            std::bit_ceil(static_cast<std::uint32_t>(std::max(grounds.count, 1))))),
        highest_(2 * static_cast<std::size_t>(leaves_)),
        flat_(highest_.size()) {}

  void fall(std::span<std::int64_t> offsets) { move(offsets, false, 0); }

  void rise(std::span<std::int64_t> offsets, std::int64_t roof) {
    move(offsets, true, roof);
  }

 private:
  /// Upwards it is the same, seen from the roof.
  void move(std::span<std::int64_t> offsets, bool upwards, std::int64_t roof) {
    const Grounds& g = *grounds_;
    order_.clear();
    for (std::int32_t i = 0; i < g.size(); ++i) {
      if (offsets[i] < 0) continue;
      order_.emplace_back(upwards ? roof - offsets[i] - g.bytes[i] : offsets[i], i);
    }
    std::ranges::sort(order_);
    std::ranges::fill(highest_, 0);
    std::ranges::fill(flat_, 0);
    for (const auto& [distance, i] : order_) {
      const std::int32_t end = std::min(g.end[i], g.count), again = g.end[i] - g.count;
      std::int64_t height = highest(1, 0, leaves_, g.start[i], end);
      if (again > 0) height = std::max(height, highest(1, 0, leaves_, 0, again));
      if (g.is_fixed(i)) {
        height = distance;
      } else if (upwards) {
        offsets[i] = g.down(roof - height - g.bytes[i], i);
        height = roof - offsets[i] - g.bytes[i];
      } else {
        offsets[i] = height = g.up(height, i);
      }
      raise(1, 0, leaves_, g.start[i], end, height + g.bytes[i]);
      if (again > 0) raise(1, 0, leaves_, 0, again, height + g.bytes[i]);
    }
  }

  std::int64_t highest(std::size_t node, std::int32_t left, std::int32_t right,
                       std::int32_t from, std::int32_t to) const {
    if (to <= left || right <= from) return 0;
    if (from <= left && right <= to) return highest_[node];
    if (flat_[node] >= 0) return flat_[node];
    const std::int32_t middle = left + (right - left) / 2;
    return std::max(highest(2 * node, left, middle, from, to),
                    highest(2 * node + 1, middle, right, from, to));
  }

  void raise(std::size_t node, std::int32_t left, std::int32_t right, std::int32_t from,
             std::int32_t to, std::int64_t height) {
    if (to <= left || right <= from) return;
    if (from <= left && right <= to) {
      highest_[node] = flat_[node] = height;
      return;
    }
    if (flat_[node] >= 0) {
      highest_[2 * node] = flat_[2 * node] = flat_[node];
      highest_[2 * node + 1] = flat_[2 * node + 1] = flat_[node];
      flat_[node] = -1;
    }
    const std::int32_t middle = left + (right - left) / 2;
    raise(2 * node, left, middle, from, to, height);
    raise(2 * node + 1, middle, right, from, to, height);
    highest_[node] = std::max(highest_[2 * node], highest_[2 * node + 1]);
  }

  const Grounds* grounds_;
  std::int32_t leaves_ = 1;
  std::vector<std::int64_t> highest_, flat_;  // of stretches of time; flat_: or -1
  std::vector<std::pair<std::int64_t, std::int32_t>> order_;
};

}  // namespace memplan::dsa
