#include "dsa/fit_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace memplan::dsa {
namespace {

// Halves the blocks between [first, last) again and again, in turn by their start
// and by their end, and hands the pieces to `leaf` from left to right.
template <typename Leaf>
void split(std::span<std::int32_t> blocks, std::size_t leaves,
           std::span<const std::int32_t> key, std::span<const std::int32_t> other,
           Leaf& leaf) {
  if (leaves == 1) {
    leaf(blocks);
    return;
  }
  const std::size_t half = blocks.size() / 2;
  std::nth_element(
      blocks.begin(), blocks.begin() + half, blocks.end(),
      [key](std::int32_t a, std::int32_t b) { return key[a] < key[b]; });
  split(blocks.first(half), leaves / 2, other, key, leaf);
  split(blocks.subspan(half), leaves / 2, other, key, leaf);
}

}  // namespace

FitTree::FitTree(std::span<const std::int32_t> start,
                 std::span<const std::int32_t> end)
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

void FitTree::reset(std::span<const std::int32_t> order) {
  std::fill(rank_.begin(), rank_.end(), kNone);
  slot_of_rank_.resize(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    slot_of_rank_[k] = slot_of_block_[order[k]];
    rank_[slot_of_rank_[k]] = static_cast<std::int32_t>(k);
  }
  for (std::size_t j = 0; j < leaves_; ++j) nodes_[leaves_ + j] = leaf_node(j);
  for (std::size_t k = leaves_ - 1; k > 0; --k) nodes_[k] = inner_node(k);
}

FitTree::Node FitTree::leaf_node(std::size_t leaf) const {
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

FitTree::Node FitTree::inner_node(std::size_t node) const {
  const Node &a = nodes_[2 * node], &b = nodes_[2 * node + 1];
  return {std::min(a.min_start, b.min_start), std::max(a.max_start, b.max_start),
          std::min(a.min_end, b.min_end), std::max(a.max_end, b.max_end),
          std::min(a.best, b.best)};
}

std::int32_t FitTree::best_in_leaf(std::size_t leaf, std::int32_t left,
                                   std::int32_t right, std::int32_t limit) const {
  for (std::size_t s = leaf * kLeaf; s < (leaf + 1) * kLeaf; ++s) {
    // Not &&, which would be a branch.
    const int inside = int{start_[s] >= left} & int{end_[s] <= right};
    limit = std::min(limit, inside != 0 ? rank_[s] : kNone);
  }
  return limit;
}

std::int32_t FitTree::best(std::int32_t left, std::int32_t right,
                           std::int32_t limit) const {
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

FitTree::Block FitTree::take(std::int32_t rank) {
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

}  // namespace memplan::dsa
