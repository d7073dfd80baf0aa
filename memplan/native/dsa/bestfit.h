// Best fit on a skyline: profile-guided memory optimization, section 3.2.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
std::vector<std::int32_t> longest_first(std::span<const std::int64_t> lifetime,
                                        std::span<const std::int64_t> size);

class FitTree;

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
  explicit BestFit(const Blocks& blocks);
  ~BestFit();

  std::size_t size() const { return size_.size(); }

  /// Places the blocks of `order`, each at most once, and writes offsets[block];
  /// the offsets of other blocks stay. Returns the highest top.
  ///
  /// On a periodic clock the lines lie on a circle, so every block is like any other.
  std::int64_t decode(std::span<const std::int32_t> order,
                      std::span<std::int64_t> offsets);

  /// The same on a periodic clock cut open at 0: the blocks of `stack`, which all
  /// are alive across 0, are first piled up from offset 0 in this order, and no
  /// block of `order` may be one that is. Throws std::invalid_argument.
  std::int64_t decode_above(std::span<const std::int32_t> stack,
                            std::span<const std::int32_t> order,
                            std::span<std::int64_t> offsets);

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

  void lay_flat_ground();
  void lay_ground(std::span<const std::int32_t> stack,
                  std::span<const std::int64_t> offsets);
  std::int64_t place_all(std::span<const std::int32_t> order,
                         std::span<std::int64_t> offsets);
  std::int32_t pop_lowest();
  void push(std::int32_t line);
  std::int32_t best_inside(std::int32_t line) const;
  std::int32_t raise(std::int32_t line, std::int32_t start, std::int32_t end,
                     std::int64_t top);
  void lift(std::int32_t line);

  bool is_open_circle(std::int32_t line) const;
  std::int32_t right_end(std::int32_t line) const;
  std::int64_t rounded_up(std::int64_t height, std::int32_t block) const;

  Sections sections_;
  std::vector<std::int64_t> size_, alignment_;
  std::unique_ptr<FitTree> tree_;
  bool periodic_;
  bool walled_ = true;  // no line reaches over the end of the last section
  std::vector<Line> lines_;  // by first section; of height kGone where none begins
  std::vector<Entry> heap_;  // lowest line on top; skip entries of an older height
};

}  // namespace memplan::dsa
