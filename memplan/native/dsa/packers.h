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

/// Best fit on a skyline for some hundreds of blocks on a linear clock, without
/// alignments. It gives up as soon as what waits cannot end below the target any more:
/// then late() is what waits in the section where that shows.
class ListPacker final : public Packer {
 public:
  /// Above this, `BestFit` and its tree are faster, though they never give up.
  static constexpr std::size_t kMostBlocks = 1024;

  /// taken: bytes that count for the peak, at most the size.
  ListPacker(const Sections& sections, std::span<const std::int64_t> size,
             std::span<const std::int64_t> taken);
  bool pack(std::span<const std::int32_t> order, std::int64_t target) override;

 private:
  struct Line {
    std::int32_t left;
    std::int64_t height;
  };
  // Waiting blocks are looked at in batches, so that the compiler can do it at once.
  static constexpr std::size_t kBatch = 16;
  static constexpr std::int16_t kPlaced = -1;

  void begin(std::span<const std::int32_t> order);
  std::size_t first_inside(std::int16_t left, std::int16_t right) const;
  void place(std::size_t slot, std::int64_t height);
  void close_up();
  std::size_t raise(std::size_t line, std::int32_t block, std::int64_t top);
  bool lift(std::size_t line, std::int64_t target);
  bool fail(std::int32_t section);

  std::vector<std::int16_t> start_, end_;  // in sections, by block
  std::vector<std::int64_t> size_, taken_, live_;
  std::int64_t most_spare_ = 0;  // of size - taken
  std::vector<std::int16_t> slot_start_, slot_end_;  // what waits, first come first
  std::vector<std::int32_t> slot_block_;
  std::size_t slots_ = 0, gone_ = 0;
  std::vector<std::int64_t> waiting_bytes_;  // by section
  std::vector<Line> lines_;  // by time; the last is a wall
};

/// Best fit on a skyline for any number of blocks, on a circle if need be.
/// late() is what ends above the target.
class TreePacker final : public Packer {
 public:
  explicit TreePacker(const Blocks& blocks);
  bool pack(std::span<const std::int32_t> order, std::int64_t target) override;

 private:
  std::vector<std::int64_t> taken_;
  BestFit decoder_;
};

/// The lowest gap for each, around blocks whose offsets are given.
/// late() is what ends above the target.
class GapPacker final : public Packer {
 public:
  /// `blocks` and `fixed`, -1 for those that are free, must outlive the packer.
  GapPacker(const Blocks& blocks, std::span<const std::int64_t> fixed);
  bool pack(std::span<const std::int32_t> order, std::int64_t target) override;

 private:
  Blocks blocks_;
  std::span<const std::int64_t> fixed_;
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
