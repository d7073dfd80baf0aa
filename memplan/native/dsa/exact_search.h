// Canonical branch and bound over packings, on a stack that can be left and resumed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsa/exact_bounds.h"
#include "dsa/exact_memo.h"
#include "dsa/exact_model.h"
#include "dsa/exact_ranking.h"
#include "dsa/exact_state.h"
#include "stop_sign.h"

namespace memplan::dsa {

enum class Verdict : std::uint8_t { kOpen, kFits, kNever };

/// Searches for a packing beneath a capacity, under one ranking.
///
/// A node is a state: some buffers are placed, and the next one goes at its least
/// offset, not below the last placement. Any packing can be pushed down to one that is
/// built this way: place its buffers from the bottom up, each at its least offset, and
/// repeat until nothing moves. This holds for any alignments, for fixed offsets (a
/// buffer whose least offset is its own) and on a periodic clock, since it only asks
/// which pairs overlap. Of those that begin at one offset any may come first: once all
/// packings are tried in which the first one lies there, it is barred from there. So
/// the ranking may change on the way, and does where what waits falls apart.
template <class V>
class Search {
 public:
  /// order: letters as in Ranking; M before them: where something must lie in some
  /// section next, only that is tried. Or R and a number: it begins again and again,
  /// with more time and another ranking, in which there is chance; what failed is
  /// remembered. The model must outlive the search.
  Search(const Model<V>& model, const std::string& order, V capacity,
         const Rules& rules, std::size_t memo_bytes);

  /// Goes on from where it stopped, for `nodes` more placements, or until the sign is
  /// up. kNever is a proof that nothing fits, unless some plan was found before at
  /// a higher capacity: then that nothing better does.
  Verdict run(std::int64_t nodes, const StopSign& stop);

  /// Asks for less from now on; nothing learned is lost. `capacity` is not above the
  /// present one.
  void tighten(V capacity);

  /// After kFits: an offset per buffer.
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
    std::uint32_t items, lists;  // waiting buffers by rank; then candidates, or parts
    std::uint32_t next, stop;    // candidates, or parts, still to be tried
    std::int32_t placed = -1;
    std::size_t mark;      // of the state that was found
    std::size_t mark_now;  // of the state before a placement
    V last;                // nothing may follow below
    std::uint64_t hash = 0;
  };
  struct Range {
    std::int32_t first, end;
  };

  void begin();
  void rank_anew();
  void step();
  void advance(std::int32_t at);
  void next_part(std::int32_t at);
  void give_up(std::int32_t at);
  void truncate(std::int32_t frames);
  void reopen_parts(std::int32_t at);
  Outcome open(std::int32_t parent, std::uint32_t items, Range range, V last,
               bool whole);
  Outcome open_parts(std::int32_t parent, std::uint32_t items, Range range,
                     V last);
  bool falls_apart(Range range) const;
  void list_candidates(std::size_t items, Range range, V last);
  void keep_tightest(Range range, V roof);
  void settle(std::int32_t parent, Outcome outcome);
  std::span<const std::int32_t> waiting(const Frame& frame) const {
    return {pool_.data() + frame.items, frame.lists - frame.items};
  }

  const Model<V>* model_;
  V capacity_;
  Rules rules_;
  bool tightest_;  // the rule, in this ranking
  bool rightmost_ = false;  // of sections with as few candidates
  V room_ = 0;              // a section with less had better be filled next
  std::int64_t restarts_ = -1, restart_at_ = 0;  // -1: it never does
  std::uint64_t seed_ = 0;
  State<V> state_;
  Bounds<V> bounds_;
  Ranking<V> ranking_;
  Memo<V> memo_;
  std::vector<Frame> frames_;
  std::vector<std::int32_t> pool_;
  std::vector<std::pair<V, std::int32_t>> candidates_;  // offset, place in pool_
  std::vector<std::int32_t> options_;                   // per section
  std::int32_t at_ = -1;
  Outcome outcome_ = Outcome::kGo;
  bool begun_ = false;
  std::int64_t nodes_ = 0;
};

extern template class Search<std::int32_t>;
extern template class Search<std::int64_t>;

}  // namespace memplan::dsa
