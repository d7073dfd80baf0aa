// Canonical branch and bound over packings, on a stack that can be left and resumed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/exact_bounds.h"
#include "dsa/exact_memo.h"
#include "dsa/exact_model.h"
#include "dsa/exact_state.h"
#include "stop_sign.h"

namespace memplan::dsa {

enum class Verdict : std::uint8_t { kOpen, kFits, kNever };

/// Searches for a packing beneath a capacity, under one ranking.
///
/// A node is a state: some buffers are placed, and the next one goes at its least
/// offset, not before the last placement in the order of (offset, rank). Any packing
/// can be pushed down to one that is built this way: place its buffers in that order,
/// each at its least offset, and repeat until nothing moves. This holds for any
/// alignments, for fixed offsets (a buffer whose least offset is its own) and on a
/// periodic clock, since it only asks which pairs overlap.
template <class V>
class Search {
 public:
  /// The model must outlive the search.
  Search(const Model<V>& model, V capacity, const Rules& rules,
         std::size_t memo_bytes);

  /// Goes on from where it stopped, for `nodes` more placements, or until the sign is
  /// up. kNever is a proof that nothing fits, unless some plan was found before at
  /// a higher capacity: then that nothing better does.
  Verdict run(std::int64_t nodes, const StopSign& stop);

  /// Asks for less from now on; nothing learned is lost. `capacity` is not above the
  /// present one.
  void tighten(V capacity);

  /// After kFits: an offset per rank.
  std::span<const V> offsets() const {
    return {state_.least(), static_cast<std::size_t>(model_->n)};
  }
  std::int64_t nodes() const { return nodes_; }

 private:
  enum class Outcome : std::uint8_t { kGo, kFailed, kSolved };
  enum class Kind : std::uint8_t { kChoice, kParts };

  // A choice among candidates for the next placement; or parts of time, all of which
  // must be solved. Ranges are in pool_.
  struct Frame {
    Kind kind;
    bool hatless = false;        // the placed buffer has no waiting one above it
    std::int32_t parent;         // frame, or -1
    std::int32_t first, end;     // sections
    std::uint32_t items, lists;  // waiting buffers; then candidates, or parts
    std::uint32_t next, stop;    // candidates, or parts, still to be tried
    std::int32_t placed = -1;
    std::size_t mark;  // of the state before a placement
    Last<V> last;
    std::uint64_t hash = 0;
  };
  struct Range {
    std::int32_t first, end;
  };

  void step();
  void advance(std::int32_t at);
  void next_part(std::int32_t at);
  void give_up(std::int32_t at);
  void truncate(std::int32_t frames);
  void reopen_parts(std::int32_t at);
  Outcome open(std::int32_t parent, std::uint32_t items, Range range, Last<V> last,
               bool whole);
  Outcome open_parts(std::int32_t parent, std::uint32_t items, Range range,
                     Last<V> last);
  bool falls_apart(Range range) const;
  void list_candidates(std::span<const std::int32_t> waiting, Last<V> last);
  void settle(std::int32_t parent, Outcome outcome);
  std::span<const std::int32_t> waiting(const Frame& frame) const {
    return {pool_.data() + frame.items, frame.lists - frame.items};
  }

  const Model<V>* model_;
  V capacity_;
  Rules rules_;
  State<V> state_;
  Bounds<V> bounds_;
  Memo<V> memo_;
  std::vector<Frame> frames_;
  std::vector<std::int32_t> pool_;
  std::int32_t at_ = -1;
  Outcome outcome_ = Outcome::kGo;
  bool begun_ = false;
  std::int64_t nodes_ = 0;
};

extern template class Search<std::int32_t>;
extern template class Search<std::int64_t>;

}  // namespace memplan::dsa
