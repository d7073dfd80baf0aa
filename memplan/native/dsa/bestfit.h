// Best fit on a skyline: profile-guided memory optimization, section 3.2.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <ranges>
#include <span>
#include <stdexcept>
#include <vector>

#include "dsa/sections.h"

namespace memplan::dsa {

/// n blocks: bytes and half-open lifespans; every span has n entries.
///
/// alignment: bytes, or empty where line heights need no rounding.
/// period: 0 on a linear clock; else lower < period and upper - lower <= period,
/// and upper may exceed the period: the block lives on at the clock's beginning.
/// taken: bytes of each that count for the peak, at most its size, or empty for all of
/// them: padding between blocks is needed only beneath another one.
struct Blocks {
  std::span<const std::int64_t> lower, upper, size, alignment;
  std::int64_t period = 0;
  std::span<const std::int64_t> taken = {};

  std::span<const std::int64_t> peaks() const { return taken.empty() ? size : taken; }
};

/// The order of the paper: longest lifetime first; among equals the larger size,
/// then the lower index.
inline std::vector<std::int32_t> longest_first(std::span<const std::int64_t> lifetime,
                                               std::span<const std::int64_t> size) {
  // Complements turn descending into ascending; the index decides between equals.
  std::vector<std::uint64_t> keys(size.size());
  std::ranges::transform(size, keys.begin(), std::bit_not<std::uint64_t>());
  const std::vector<std::int32_t> by_size = stable_order(keys);
  for (std::size_t k = 0; k < keys.size(); ++k) {
    keys[k] = ~static_cast<std::uint64_t>(lifetime[by_size[k]]);
  }
  std::vector<std::int32_t> order = stable_order(keys);
  for (std::int32_t& k : order) k = by_size[k];
  return order;
}

/// A kd-tree over the points (start, end) of blocks that wait to be placed.
///
/// Every node keeps the bounding box of its waiting points and the best rank among
/// them, so a search discards what lies outside or comes later without looking
/// inside. A search takes O(sqrt n) at worst and O(log n) as a rule.
class FitTree {
 public:
  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

  FitTree() = default;

  FitTree(std::span<const std::int32_t> start, std::span<const std::int32_t> end)
      : leaves_(std::bit_ceil((start.size() + kLeaf - 1) / kLeaf + (start.empty()))),
        nodes_(2 * leaves_),
        start_(leaves_ * kLeaf, kNone),
        end_(leaves_ * kLeaf, kNone),
        rank_(leaves_ * kLeaf, kNone),
        slot_of_block_(start.size()) {
    std::vector<std::int32_t> blocks(start.size());
    std::iota(blocks.begin(), blocks.end(), 0);
    std::size_t first_slot = 0;
    auto leaf = [&](std::span<const std::int32_t> members) {
      std::size_t slot = first_slot;
      for (const std::int32_t block : members) {
        start_[slot] = start[block];
        end_[slot] = end[block];
        slot_of_block_[block] = static_cast<std::int32_t>(slot++);
      }
      first_slot += kLeaf;
    };
    split(blocks, leaves_, start, end, leaf);
  }

  /// Lets the blocks of `order`, and no others, wait: the block order[k] has rank k.
  void reset(std::span<const std::int32_t> order) {
    std::fill(rank_.begin(), rank_.end(), kNone);
    slot_of_rank_.resize(order.size());
    for (std::size_t k = 0; k < order.size(); ++k) {
      slot_of_rank_[k] = slot_of_block_[order[k]];
      rank_[slot_of_rank_[k]] = static_cast<std::int32_t>(k);
    }
    for (std::size_t j = 0; j < leaves_; ++j) nodes_[leaves_ + j] = leaf_node(j);
    for (std::size_t k = leaves_ - 1; k > 0; --k) nodes_[k] = inner_node(k);
  }

  /// The least rank below `limit` of a waiting block with left <= start and
  /// end <= right; `limit` itself if there is none.
  std::int32_t best(std::int32_t left, std::int32_t right,
                    std::int32_t limit = kNone) const {
    // A node whose points all lie inside answers for itself; one to `enter` may or may
    // not improve on the limit.
    const auto enter = [&](const Node& node) {
      if ((node.best >= limit) | (node.max_start < left) | (node.min_end > right)) {
        return false;
      }
      if ((node.min_start < left) | (node.max_end > right)) return true;
      limit = node.best;
      return false;
    };
    if (!enter(nodes_[1])) return limit;

    std::array<std::uint32_t, 32> postponed;  // one sibling a level, at most
    std::size_t depth = 0;
    for (std::size_t k = 1;;) {
      if (k < leaves_) {
        const std::size_t a = 2 * k, b = a + 1;
        const bool enter_a = enter(nodes_[a]), enter_b = enter(nodes_[b]);
        if (enter_a && enter_b) {  // the better-ranked first: it may spare us the other
          const bool swap = nodes_[b].best < nodes_[a].best;
          postponed[depth++] = static_cast<std::uint32_t>(swap ? a : b);
          k = swap ? b : a;
          continue;
        }
        if (enter_a || enter_b) {
          k = enter_a ? a : b;
          continue;
        }
      } else {
        limit = best_in_leaf(k - leaves_, left, right, limit);
      }
      do {
        if (depth == 0) return limit;
        k = postponed[--depth];
      } while (nodes_[k].best >= limit);
    }
  }

  /// A block's lifespan, in sections.
  struct Block {
    std::int32_t start, end;
  };

  /// Takes the block with this rank, which must be waiting, out of the tree.
  Block take(std::int32_t rank) {
    const std::size_t slot = static_cast<std::size_t>(slot_of_rank_[rank]);
    rank_[slot] = kNone;
    std::size_t k = leaves_ + slot / kLeaf;
    nodes_[k] = leaf_node(slot / kLeaf);
    for (k /= 2; k > 0; k /= 2) {
      const Node node = inner_node(k);
      if (node == nodes_[k]) break;  // nothing changes further up
      nodes_[k] = node;
    }
    return {start_[slot], end_[slot]};
  }

 private:
  // Halves the blocks between [first, last) again and again, in turn by their start
  // and by their end, and hands the pieces to `leaf` from left to right.
  template <typename Leaf>
  static void split(std::span<std::int32_t> blocks, std::size_t leaves,
                    std::span<const std::int32_t> key,
                    std::span<const std::int32_t> other, Leaf& leaf) {
    if (leaves == 1) {
      leaf(blocks);
      return;
    }
    const std::size_t half = blocks.size() / 2;
    std::nth_element(blocks.begin(), blocks.begin() + half, blocks.end(),
                     [key](std::int32_t a, std::int32_t b) { return key[a] < key[b]; });
    split(blocks.first(half), leaves / 2, other, key, leaf);
    split(blocks.subspan(half), leaves / 2, other, key, leaf);
  }

  // Leaf j owns the slots [j * kLeaf, (j + 1) * kLeaf), not all of them in use.
  static constexpr std::size_t kLeaf = 8;

  struct Node {
    std::int32_t min_start = kNone, max_start = -1;
    std::int32_t min_end = kNone, max_end = -1;
    std::int32_t best = kNone;
    bool operator==(const Node&) const = default;
  };

  Node leaf_node(std::size_t leaf) const {
    Node node;
    for (std::size_t s = leaf * kLeaf; s < (leaf + 1) * kLeaf; ++s) {
      if (rank_[s] == kNone) continue;
      node.min_start = std::min(node.min_start, start_[s]);
      node.max_start = std::max(node.max_start, start_[s]);
      node.min_end = std::min(node.min_end, end_[s]);
      node.max_end = std::max(node.max_end, end_[s]);
      node.best = std::min(node.best, rank_[s]);
    }
    return node;
  }

  Node inner_node(std::size_t node) const {
    const Node &a = nodes_[2 * node], &b = nodes_[2 * node + 1];
    return {std::min(a.min_start, b.min_start), std::max(a.max_start, b.max_start),
            std::min(a.min_end, b.min_end), std::max(a.max_end, b.max_end),
            std::min(a.best, b.best)};
  }

  std::int32_t best_in_leaf(std::size_t leaf, std::int32_t left, std::int32_t right,
                            std::int32_t limit) const {
    for (std::size_t s = leaf * kLeaf; s < (leaf + 1) * kLeaf; ++s) {
      // Not &&, which would be a branch.
      const int inside = int{start_[s] >= left} & int{end_[s] <= right};
      limit = std::min(limit, inside != 0 ? rank_[s] : kNone);
    }
    return limit;
  }

  std::size_t leaves_ = 1;  // a power of two; node 1 is the root, 2k and 2k+1 below k
  std::vector<Node> nodes_;
  std::vector<std::int32_t> start_, end_, rank_;  // by slot
  std::vector<std::int32_t> slot_of_block_, slot_of_rank_;
};

/// Decodes orders of priority into offsets.
///
/// Repeat until every block is placed: take the lowest *offset line*, the leftmost
/// among equals; place there the first block in the order whose lifespan lies
/// inside the line; if there is none, lift the line to its lowest adjacent one,
/// and merge with it, or with both if they are equally low. Lines of equal height
/// that come to lie side by side stay apart until a lift joins them.
///
/// Building costs O(n log n) once; every decode after that reuses the memory.
class BestFit {
 public:
  /// Copies sizes and alignments; the spans need not outlive the call.
  explicit BestFit(const Blocks& blocks)
      : sections_(cut_into_sections(blocks.lower, blocks.upper, blocks.period)),
        size_(blocks.size.begin(), blocks.size.end()),
        alignment_(blocks.alignment.begin(), blocks.alignment.end()),
        tree_(sections_.start, sections_.end),
        periodic_(blocks.period > 0),
        lines_(static_cast<std::size_t>(sections_.count)) {}

  std::size_t size() const { return size_.size(); }

  /// Places the blocks of `order`, each at most once, and writes offsets[block];
  /// the offsets of other blocks stay. Returns the highest top.
  ///
  /// On a periodic clock the lines lie on a circle, so every block is like any other.
  std::int64_t decode(std::span<const std::int32_t> order,
                      std::span<std::int64_t> offsets) {
    walled_ = !periodic_;
    lay_flat_ground();
    return place_all(order, offsets);
  }

  /// The same on a periodic clock cut open at 0: the blocks of `stack`, which all
  /// are alive across 0, are first piled up from offset 0 in this order, and no
  /// block of `order` may be one that is. Throws std::invalid_argument.
  std::int64_t decode_above(std::span<const std::int32_t> stack,
                            std::span<const std::int32_t> order,
                            std::span<std::int64_t> offsets) {
    const auto crosses = [this](std::int32_t b) {
      return sections_.end[b] > sections_.count;
    };
    if (!std::ranges::all_of(stack, crosses) || std::ranges::any_of(order, crosses)) {
      throw std::invalid_argument("stack exactly the blocks that are alive across 0");
    }
    walled_ = true;
    std::int64_t top = 0;
    for (const std::int32_t block : stack) {
      offsets[block] = rounded_up(top, block);
      top = offsets[block] + size_[block];
    }
    lay_ground(stack, offsets);
    return std::max(top, place_all(order, offsets));
  }

 private:
  // A line is known by the section it begins with, and ends where `next` begins; the
  // last line is followed by the first, whether or not a wall stands between them.
  struct Line {
    std::int64_t height = kGone;
    std::int32_t prev = 0, next = 0;
  };
  struct Entry {
    std::int64_t height;
    std::int32_t line;
    bool operator>(const Entry& other) const {
      return height != other.height ? height > other.height : line > other.line;
    }
  };
  static constexpr std::int64_t kGone = -1;
  static constexpr std::int32_t kNoLine = -1;

  void lay_flat_ground() {
    heap_.clear();
    std::ranges::fill(lines_, Line{});
    if (lines_.empty()) return;
    lines_[0] = {0, 0, 0};
    push(0);
  }
  void lay_ground(std::span<const std::int32_t> stack,
                  std::span<const std::int64_t> offsets) {
    // From the top of the pile down, a block shows where it reaches beyond all those
    // above it: after 0 from `left` on, and before the end up to `right`.
    struct Step {
      std::int32_t begin;
      std::int64_t height;
    };
    std::vector<Step> ascent, descent;
    std::int32_t left = 0, right = sections_.count;
    for (const std::int32_t block : std::views::reverse(stack)) {
      const std::int64_t top = offsets[block] + size_[block];
      const std::int32_t end = std::min(sections_.end[block] - sections_.count, right);
      if (end > left) {
        descent.push_back({left, top});
        left = end;
      }
      const std::int32_t start = std::max(sections_.start[block], left);
      if (start < right) {
        ascent.push_back({start, top});
        right = start;
      }
    }
    if (left < right) descent.push_back({left, 0});
    for (const Step& step : std::views::reverse(ascent)) {
      // A block that is always alive has met itself: that is one line.
      if (descent.back().height != step.height) descent.push_back(step);
    }

    heap_.clear();
    std::ranges::fill(lines_, Line{});
    for (std::size_t k = 0; k < descent.size(); ++k) {
      const std::size_t prev = k > 0 ? k - 1 : descent.size() - 1;
      const std::size_t next = k + 1 < descent.size() ? k + 1 : 0;
      lines_[descent[k].begin] = {descent[k].height, descent[prev].begin,
                                  descent[next].begin};
      push(descent[k].begin);
    }
  }
  std::int64_t place_all(std::span<const std::int32_t> order,
                         std::span<std::int64_t> offsets) {
    tree_.reset(order);
    std::int64_t peak = 0;
    std::int32_t line = kNoLine;
    for (std::size_t waiting = order.size(); waiting > 0;) {
      if (line == kNoLine) line = pop_lowest();
      const std::int32_t rank = best_inside(line);
      if (rank == FitTree::kNone) {
        lift(line);
        line = kNoLine;
        continue;
      }
      const std::int32_t block = order[rank];
      const FitTree::Block lifespan = tree_.take(rank);
      --waiting;
      offsets[block] = rounded_up(lines_[line].height, block);
      const std::int64_t top = offsets[block] + size_[block];
      peak = std::max(peak, top);
      line = raise(line, lifespan.start, lifespan.end, top);
    }
    return peak;
  }
  std::int32_t pop_lowest() {
    for (;;) {
      std::ranges::pop_heap(heap_, std::greater<>());
      const Entry entry = heap_.back();
      heap_.pop_back();
      if (lines_[entry.line].height == entry.height) return entry.line;
    }
  }
  void push(std::int32_t line) {
    heap_.push_back({lines_[line].height, line});
    std::ranges::push_heap(heap_, std::greater<>());
  }
  std::int32_t best_inside(std::int32_t line) const {
    const std::int32_t count = sections_.count;
    if (is_open_circle(line)) return tree_.best(0, 2 * count);
    const std::int32_t right = right_end(line);
    const std::int32_t rank = tree_.best(line, right);
    // A line over the end of the period also holds blocks of the clock's beginning.
    return right > count ? tree_.best(0, right - count, rank) : rank;
  }
  /// Raises the part of `line` that the lifespan covers to `top`. Returns which piece
  /// left over is now the lowest line, leftmost among equals, or kNoLine.
  std::int32_t raise(std::int32_t line, std::int32_t start, std::int32_t end,
                     std::int64_t top) {
    const std::int32_t count = sections_.count;
    if (is_open_circle(line) && line != start) {  // where it begins is ours to choose
      lines_[start] = {lines_[line].height, start, start};
      lines_[line].height = kGone;
      line = start;
    }
    if (start < line) start += count, end += count;
    const std::int32_t right = right_end(line);
    const std::int64_t height = lines_[line].height;
    std::int32_t next = lines_[line].next, before = kNoLine, after = kNoLine;

    const std::int32_t middle = start % count;
    if (end < right) {
      after = end % count;
      lines_[after] = {height, middle, next};
      lines_[next].prev = after;
      next = after;
    }
    if (start > line) {
      before = line;
      lines_[middle].prev = line;
      lines_[line].next = middle;
    }
    lines_[middle].height = top;
    lines_[middle].next = next;
    lines_[next].prev = middle;
    push(middle);

    if (before == kNoLine || after == kNoLine) return std::max(before, after);
    push(std::max(before, after));
    return std::min(before, after);
  }
  /// Lifts `line` to its lowest neighbour and merges them, or all three.
  void lift(std::int32_t line) {
    constexpr std::int64_t kSky = std::numeric_limits<std::int64_t>::max();
    const auto [height, prev, next] = lines_[line];
    const std::int64_t before = walled_ && line == 0 ? kSky : lines_[prev].height;
    const std::int64_t after = walled_ && next == 0 ? kSky : lines_[next].height;
    if (before <= after) {
      // Its neighbour keeps its place in the heap.
      lines_[prev].next = next;
      lines_[next].prev = prev;
      lines_[line].height = kGone;
    }
    if (after <= before) {  // of equals that are one line, this changes nothing
      const std::int32_t left = before == after ? prev : line;
      const std::int32_t beyond = lines_[next].next;
      lines_[next].height = kGone;
      lines_[left].height = after;
      lines_[left].next = beyond;
      lines_[beyond].prev = left;
      if (left == line) push(line);
    }
  }

  bool is_open_circle(std::int32_t line) const {
    return !walled_ && lines_[line].next == line;
  }
  std::int32_t right_end(std::int32_t line) const {
    const std::int32_t next = lines_[line].next;
    return next > line ? next : next + sections_.count;
  }
  std::int64_t rounded_up(std::int64_t height, std::int32_t block) const {
    if (alignment_.empty()) return height;
    const std::int64_t unit = alignment_[block];
    return (height + unit - 1) / unit * unit;
  }

  Sections sections_;
  std::vector<std::int64_t> size_, alignment_;
  FitTree tree_;
  bool periodic_;
  bool walled_ = true;  // no line reaches over the end of the last section
  std::vector<Line> lines_;  // by first section; of height kGone where none begins
  std::vector<Entry> heap_;  // lowest line on top; skip entries of an older height
};

}  // namespace memplan::dsa
