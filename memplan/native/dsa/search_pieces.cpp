#include "dsa/search_pieces.h"

#include <algorithm>
#include <limits>

namespace memplan::dsa {
namespace {

constexpr std::int64_t kNowhere = -1;

std::int64_t rounded_up(std::int64_t offset, std::int64_t unit) {
  return (offset + unit - 1) / unit * unit;
}

}  // namespace

PieceBoard::PieceBoard(const Pieces& pieces, std::size_t blocks)
    : first_(blocks + 1) {
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

PiecePacker::PiecePacker(const PieceBoard& board, const Blocks& blocks,
                         std::span<const std::int64_t> fixed)
    : board_(board), blocks_(blocks), fixed_(fixed) {}

bool PiecePacker::pack(std::span<const std::int32_t> order, std::int64_t target) {
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

std::int64_t PiecePacker::lowest(std::int32_t block) {
  forbidden_.clear();
  const auto rows = board_.rows();
  for (const std::int32_t k : board_.of(block)) {
    const PieceBoard::Row& mine = rows[k];
    for (std::int32_t j = mine.from; j < mine.to; ++j) {
      const PieceBoard::Row& other = rows[j];
      const std::int64_t at = offsets_[other.owner];
      if (at == kNowhere || other.upper <= mine.lower) continue;
      forbidden_.push_back({at + other.begin - mine.end, at + other.end - mine.begin});
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

}  // namespace memplan::dsa
