#include "dsa/packers.h"

#include <algorithm>
#include <limits>

#include "dsa/gaps.h"

namespace memplan::dsa {
namespace {

constexpr std::int64_t kSky = std::numeric_limits<std::int64_t>::max();

/// Whether all of `order` end at the target or below; those that do not are `late`.
bool all_below(std::span<const std::int32_t> order, std::span<const std::int64_t> taken,
               std::span<const std::int64_t> offsets, std::int64_t target,
               std::vector<std::int32_t>& late) {
  late.clear();
  for (const std::int32_t block : order) {
    if (offsets[block] + taken[block] > target) late.push_back(block);
  }
  return late.empty();
}

constexpr std::int64_t kNowhere = -1;

std::int64_t rounded_up(std::int64_t offset, std::int64_t unit) {
  return (offset + unit - 1) / unit * unit;
}

/// Best fit on a skyline for some hundreds of blocks on a linear clock, without
/// alignments. It gives up as soon as what waits cannot end below the target any more:
/// then late() is what waits in the section where that shows.
class ListPacker final : public Packer {
 public:
  /// Above this, `TreePacker` is faster, though it never gives up.
  static constexpr std::size_t kMostBlocks = 1024;

  /// taken: bytes that count for the peak, at most the size.
  ListPacker(const Sections& sections, std::span<const std::int64_t> size,
             std::span<const std::int64_t> taken)
      : start_(sections.start.begin(), sections.start.end()),
        end_(sections.end.begin(), sections.end.end()),
        size_(size.begin(), size.end()),
        taken_(taken.begin(), taken.end()),
        live_(static_cast<std::size_t>(sections.count)),
        slot_start_(size.size() + kBatch),
        slot_end_(size.size() + kBatch),
        slot_block_(size.size()) {
    offsets_.resize(size.size());
    for (std::size_t i = 0; i < size.size(); ++i) {
      most_spare_ = std::max(most_spare_, size[i] - taken[i]);
      for (std::int32_t s = start_[i]; s < end_[i]; ++s) live_[s] += size[i];
    }
  }

  bool pack(std::span<const std::int32_t> order, std::int64_t target) override {
    begin(order);
    std::size_t line = 0;
    bool known = true;
    for (std::size_t waiting = order.size(); waiting > 0;) {
      if (!known) {
        line = static_cast<std::size_t>(
            std::ranges::min_element(lines_, {}, &Line::height) - lines_.begin());
      }
      const auto left = static_cast<std::int16_t>(lines_[line].left);
      const auto right = static_cast<std::int16_t>(lines_[line + 1].left);
      const std::size_t slot = first_inside(left, right);
      if (slot == slots_) {
        if (!lift(line, target)) return false;
        known = false;
        continue;
      }
      const std::int32_t block = slot_block_[slot];
      const std::int64_t height = lines_[line].height;
      const std::int64_t top = height + size_[block];
      if (height + taken_[block] > target) return fail(start_[block]);
      place(slot, height);
      --waiting;
      // What is left of the line is the lowest still; if nothing is, look around.
      line = raise(line, block, top);
      known = lines_[line].height == height;
    }
    return true;
  }

 private:
  struct Line {
    std::int32_t left;
    std::int64_t height;
  };
  // Waiting blocks are looked at in batches, so that the compiler can do it at once.
  static constexpr std::size_t kBatch = 16;
  static constexpr std::int16_t kPlaced = -1;

  void begin(std::span<const std::int32_t> order) {
    slots_ = order.size();
    gone_ = 0;
    for (std::size_t k = 0; k < slots_; ++k) {
      slot_block_[k] = order[k];
      slot_start_[k] = start_[order[k]];
      slot_end_[k] = end_[order[k]];
    }
    std::fill_n(slot_start_.begin() + slots_, kBatch, kPlaced);
    waiting_bytes_ = live_;
    lines_.assign({{0, 0}, {static_cast<std::int32_t>(live_.size()), kSky}});
  }

  /// The first slot whose block waits and lies inside [left, right), or slots_.
  std::size_t first_inside(std::int16_t left, std::int16_t right) const {
    for (std::size_t k = 0; k < slots_; k += kBatch) {
      int any = 0;
      for (std::size_t j = k; j < k + kBatch; ++j) {
        any |= (slot_start_[j] >= left) & (slot_end_[j] <= right);
      }
      if (any == 0) continue;
      while (!(slot_start_[k] >= left && slot_end_[k] <= right)) ++k;
      return k;
    }
    return slots_;
  }

  void place(std::size_t slot, std::int64_t height) {
    const std::int32_t block = slot_block_[slot];
    offsets_[block] = height;
    for (std::int32_t s = start_[block]; s < end_[block]; ++s) {
      waiting_bytes_[s] -= size_[block];
    }
    slot_start_[slot] = kPlaced;
    if (2 * ++gone_ > slots_) close_up();
  }

  void close_up() {
    std::size_t kept = 0;
    for (std::size_t k = 0; k < slots_; ++k) {
      if (slot_start_[k] == kPlaced) continue;
      slot_start_[kept] = slot_start_[k];
      slot_end_[kept] = slot_end_[k];
      slot_block_[kept++] = slot_block_[k];
    }
    slots_ = kept;
    gone_ = 0;
    std::fill_n(slot_start_.begin() + slots_, kBatch, kPlaced);
  }

  /// Raises the part of `line` that the block covers. Returns the first piece left over,
  /// or the raised one.
  std::size_t raise(std::size_t line, std::int32_t block, std::int64_t top) {
    const auto [left, height] = lines_[line];
    const std::int32_t start = start_[block], end = end_[block];
    const bool after = end < lines_[line + 1].left;
    if (after) lines_.insert(lines_.begin() + line + 1, {end, height});
    if (start > left) {
      lines_.insert(lines_.begin() + line + 1, {start, top});
      return line;
    }
    lines_[line].height = top;
    return after ? line + 1 : line;
  }

  /// Lifts the line to its lowest neighbour, and merges it with that, or with both.
  /// False if what waits there would then end above the target.
  bool lift(std::size_t line, std::int64_t target) {
    const std::int64_t before = line > 0 ? lines_[line - 1].height : kSky;
    const std::int64_t after = lines_[line + 1].height;
    const std::int64_t height = std::min(before, after);
    for (std::int32_t s = lines_[line].left; s < lines_[line + 1].left; ++s) {
      if (waiting_bytes_[s] > 0 && height + waiting_bytes_[s] - most_spare_ > target) {
        return fail(s);
      }
    }
    const auto at = lines_.begin() + static_cast<std::ptrdiff_t>(line);
    if (after < before) at->height = after;
    lines_.erase(before <= after ? at : at + 1, before == after  ? at + 2
                                                : before < after ? at + 1
                                                                 : at + 2);
    return true;
  }

  bool fail(std::int32_t section) {
    late_.clear();
    for (std::size_t k = 0; k < slots_; ++k) {
      if (slot_start_[k] == kPlaced) continue;
      if (slot_start_[k] <= section && section < slot_end_[k]) {
        late_.push_back(slot_block_[k]);
      }
    }
    return false;
  }

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
  explicit TreePacker(const Blocks& blocks)
      : taken_(blocks.peaks().begin(), blocks.peaks().end()), decoder_(blocks) {
    offsets_.resize(taken_.size());
  }

  bool pack(std::span<const std::int32_t> order, std::int64_t target) override {
    decoder_.decode(order, offsets_);
    return all_below(order, taken_, offsets_, target, late_);
  }

 private:
  std::vector<std::int64_t> taken_;
  BestFit decoder_;
};

/// The lowest gap for each, around blocks whose offsets are given.
/// late() is what ends above the target.
class GapPacker final : public Packer {
 public:
  /// `blocks` and `fixed`, -1 for those that are free, must outlive the packer.
  GapPacker(const Blocks& blocks, std::span<const std::int64_t> fixed)
      : blocks_(blocks), fixed_(fixed) {}

  bool pack(std::span<const std::int32_t> order, std::int64_t target) override {
    offsets_.assign(fixed_.begin(), fixed_.end());
    fill_gaps(blocks_, order, kSky, offsets_);
    return all_below(order, blocks_.peaks(), offsets_, target, late_);
  }

 private:
  Blocks blocks_;
  std::span<const std::int64_t> fixed_;
};

/// One after the other, each block at the lowest offset where none of its pieces
/// touches one of those before it that is used at the same time.
/// late() is what ends above the target.
class PiecePacker final : public Packer {
 public:
  /// All must outlive the packer. fixed: -1 for those that are free; or empty.
  PiecePacker(const PieceBoard& board, const Blocks& blocks,
              std::span<const std::int64_t> fixed)
      : board_(board), blocks_(blocks), fixed_(fixed) {}

  bool pack(std::span<const std::int32_t> order, std::int64_t target) override {
    if (fixed_.empty()) {
      offsets_.assign(blocks_.size.size(), kNowhere);
    } else {
      offsets_.assign(fixed_.begin(), fixed_.end());
    }
    late_.clear();
    const auto taken = blocks_.peaks();
    for (const std::int32_t block : order) {
      offsets_[block] = lowest(block);
      if (offsets_[block] + taken[block] > target) late_.push_back(block);
    }
    return late_.empty();
  }

 private:
  // Offsets strictly between are not to be had.
  struct Forbidden {
    std::int64_t before, after;
  };

  std::int64_t lowest(std::int32_t block) {
    forbidden_.clear();
    const auto rows = board_.rows();
    for (const std::int32_t k : board_.of(block)) {
      const PieceBoard::Row& mine = rows[k];
      for (std::int32_t j = mine.from; j < mine.to; ++j) {
        const PieceBoard::Row& other = rows[j];
        const std::int64_t at = offsets_[other.owner];
        if (at == kNowhere || other.upper <= mine.lower) continue;
        forbidden_.push_back(
            {at + other.begin - mine.end, at + other.end - mine.begin});
      }
    }
    std::ranges::sort(forbidden_, {}, &Forbidden::before);
    const std::int64_t unit = blocks_.alignment.empty() ? 1 : blocks_.alignment[block];
    std::int64_t offset = 0;
    for (const Forbidden& one : forbidden_) {
      if (offset <= one.before) break;
      offset = std::max(offset, rounded_up(std::max<std::int64_t>(one.after, 0), unit));
    }
    return offset;
  }

  const PieceBoard& board_;
  Blocks blocks_;
  std::span<const std::int64_t> fixed_;
  std::vector<Forbidden> forbidden_;
};

}  // namespace

PieceBoard::PieceBoard(const Pieces& pieces, std::size_t blocks) : first_(blocks + 1) {
  for (std::size_t k = 0; k < pieces.owner.size(); ++k) {
    rows_.push_back({pieces.lower[k], pieces.upper[k], pieces.begin[k], pieces.end[k],
                     static_cast<std::int32_t>(pieces.owner[k]), 0, 0});
  }
  std::ranges::stable_sort(rows_, {}, &Row::lower);
  // The latest end of all rows up to each.
  std::vector<std::int64_t> latest;
  std::int64_t end = std::numeric_limits<std::int64_t>::min();
  for (const Row& row : rows_) latest.push_back(end = std::max(end, row.upper));
  for (Row& row : rows_) {
    const auto from = std::ranges::upper_bound(latest, row.lower);
    const auto to = std::ranges::lower_bound(rows_, row.upper, {}, &Row::lower);
    row.from = static_cast<std::int32_t>(from - latest.begin());
    row.to = static_cast<std::int32_t>(to - rows_.begin());
    ++first_[row.owner + 1];
  }
  for (std::size_t i = 0; i < blocks; ++i) first_[i + 1] += first_[i];
  std::vector<std::int32_t> next(first_.begin(), first_.end() - 1);
  mine_.resize(rows_.size());
  for (std::size_t k = 0; k < rows_.size(); ++k) {
    mine_[next[rows_[k].owner]++] = static_cast<std::int32_t>(k);
  }
}

std::unique_ptr<Packer> make_packer(const Blocks& blocks,
                                    std::span<const std::int64_t> fixed,
                                    const Sections& sections, const PieceBoard* board) {
  if (board != nullptr) return std::make_unique<PiecePacker>(*board, blocks, fixed);
  if (std::ranges::any_of(fixed, [](auto offset) { return offset >= 0; })) {
    return std::make_unique<GapPacker>(blocks, fixed);
  }
  const bool plain = blocks.period == 0 && blocks.alignment.empty();
  if (plain && blocks.size.size() <= ListPacker::kMostBlocks) {
    return std::make_unique<ListPacker>(sections, blocks.size, blocks.peaks());
  }
  return std::make_unique<TreePacker>(blocks);
}

}  // namespace memplan::dsa
