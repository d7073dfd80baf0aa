// Orders of priority packed around and into the gaps of lifespans.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/search_pack.h"

namespace memplan::dsa {

/// What blocks use, in any order: block owner[k] its bytes [begin[k], end[k]), counted
/// from its offset, at the times [lower[k], upper[k]) of a linear clock.
struct Pieces {
  std::span<const std::int64_t> owner, lower, upper, begin, end;
};

/// The pieces by time, and by block; all packers of a search look at the same ones.
class PieceBoard {
 public:
  PieceBoard(const Pieces& pieces, std::size_t blocks);

  struct Row {
    std::int64_t lower, upper, begin, end;
    std::int32_t owner;
    // Rows [from, to) hold all that are used at the same time.
    std::int32_t from, to;
  };

  std::span<const Row> rows() const { return rows_; }
  /// Which rows are a block's.
  std::span<const std::int32_t> of(std::int32_t block) const {
    return {mine_.data() + first_[block], mine_.data() + first_[block + 1]};
  }

 private:
  std::vector<Row> rows_;
  std::vector<std::int32_t> mine_, first_;
};

/// One after the other, each block at the lowest offset where none of its pieces
/// touches one of those before it that is used at the same time.
/// late() is what ends above the target.
class PiecePacker final : public Packer {
 public:
  /// All must outlive the packer. fixed: -1 for those that are free; or empty.
  PiecePacker(const PieceBoard& board, const Blocks& blocks,
              std::span<const std::int64_t> fixed);
  bool pack(std::span<const std::int32_t> order, std::int64_t target) override;

 private:
  // Offsets strictly between are not to be had.
  struct Forbidden {
    std::int64_t before, after;
  };

  std::int64_t lowest(std::int32_t block);

  const PieceBoard& board_;
  Blocks blocks_;
  std::span<const std::int64_t> fixed_;
  std::vector<Forbidden> forbidden_;
};

}  // namespace memplan::dsa
