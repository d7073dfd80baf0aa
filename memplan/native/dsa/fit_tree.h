// Which waiting block inside a stretch of time comes first?
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace memplan::dsa {

/// A kd-tree over the points (start, end) of blocks that wait to be placed.
///
/// Every node keeps the bounding box of its waiting points and the best rank among
/// them, so a search discards what lies outside or comes later without looking
/// inside. A search takes O(sqrt n) at worst and O(log n) as a rule.
class FitTree {
 public:
  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

  FitTree() = default;
  FitTree(std::span<const std::int32_t> start, std::span<const std::int32_t> end);

  /// Lets the blocks of `order`, and no others, wait: the block order[k] has rank k.
  void reset(std::span<const std::int32_t> order);

  /// The least rank below `limit` of a waiting block with left <= start and
  /// end <= right; `limit` itself if there is none.
  std::int32_t best(std::int32_t left, std::int32_t right,
                    std::int32_t limit = kNone) const;

  /// A block's lifespan, in sections.
  struct Block {
    std::int32_t start, end;
  };

  /// Takes the block with this rank, which must be waiting, out of the tree.
  Block take(std::int32_t rank);

 private:
  // Leaf j owns the slots [j * kLeaf, (j + 1) * kLeaf), not all of them in use.
  static constexpr std::size_t kLeaf = 8;

  struct Node {
    std::int32_t min_start = kNone, max_start = -1;
    std::int32_t min_end = kNone, max_end = -1;
    std::int32_t best = kNone;
    bool operator==(const Node&) const = default;
  };

  Node leaf_node(std::size_t leaf) const;
  Node inner_node(std::size_t node) const;
  std::int32_t best_in_leaf(std::size_t leaf, std::int32_t left, std::int32_t right,
                            std::int32_t limit) const;

  std::size_t leaves_ = 1;  // a power of two; node 1 is the root, 2k and 2k+1 below k
  std::vector<Node> nodes_;
  std::vector<std::int32_t> start_, end_, rank_;  // by slot
  std::vector<std::int32_t> slot_of_block_, slot_of_rank_;
};

}  // namespace memplan::dsa
