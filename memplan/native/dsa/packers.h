// What a search tries again and again: an order of priority, packed below a target.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/sections.h"

namespace memplan::dsa {

/// Packs orders of priority, and blames blocks when it comes out too high.
class Packer {
 public:
  virtual ~Packer() = default;

  /// Whether packing in this order keeps below or at `target`. If so, offsets() holds
  /// all of them; if not, late() names blocks that came too late to do so.
  virtual bool pack(std::span<const std::int32_t> order, std::int64_t target) = 0;

  std::span<const std::int64_t> offsets() const { return offsets_; }
  std::span<const std::int32_t> late() const { return late_; }

 protected:
  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> late_;
};

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

/// The packer that is the fastest for such blocks; all must outlive it.
/// fixed: -1 for those that are free; or empty. board: none without gaps.
std::unique_ptr<Packer> make_packer(const Blocks& blocks,
                                    std::span<const std::int64_t> fixed,
                                    const Sections& sections, const PieceBoard* board);

}  // namespace memplan::dsa
