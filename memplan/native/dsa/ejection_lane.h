// One of the searches by ejection that run side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "dsa/ejection_board.h"
#include "dsa/search_lane.h"

namespace memplan::dsa {

/// What makes one lane differ from another.
struct Temper {
  double life_power;  // a block counts as size * life ^ this when it is to be ejected
  bool tightest;      // takes the tightest of the gaps that fit, not the lowest
  double patience;    // multiplies how long it goes on in vain
};

/// Ejection chains (Glover 1996), with what was hard to place before made dearer to
/// eject (Nagata and Braysy, Operations Research Letters 37, 2009).
///
/// All blocks that end above a roof, somewhat below the best peak, are taken out. One
/// after the other, the largest first, they are put back beneath the roof: into a gap
/// if there is one; else where the blocks in the way are worth least, and those are
/// taken out in turn. Whenever that goes on for a while, all that lies there falls to
/// the ground, or next time rises to the roof, so that the room between is gathered.
/// Once all are back, the roof is lowered; if it seems too low, it is raised.
class EjectionLane {
 public:
  /// offsets: a packing to begin with, by the numbers of `grounds`. Both `grounds`
  /// and `temper` must outlive the lane, which must not be copied once it has begun.
  EjectionLane(const Grounds& grounds, const Temper& temper, std::uint64_t seed,
               std::span<const std::int64_t> offsets);

  /// Works for a while, to reach `goal` or below; `stop` is asked now and then, and
  /// ends it at once. Units of work are blocks looked at, whatever the machine.
  void run(std::int64_t goal, std::int64_t work, const std::function<bool()>& stop);

  /// Goes on from this packing; what was out is put where that has it.
  void adopt(std::span<const std::int64_t> offsets);

  std::int64_t peak() const { return peak_; }
  std::int64_t roof() const { return roof_; }
  std::int64_t placed() const { return placed_; }
  std::int64_t worked() const { return worked_; }
  std::span<const std::int64_t> best() const { return best_; }

 private:
  struct Lying {
    std::int64_t at;  // its bottom, or its top
    std::int32_t block;
  };
  struct Cost {
    double price;
    std::int64_t offset;
  };

  void keep(std::span<const std::int64_t> offsets);
  void begin_round(std::int64_t goal);
  void end_round();
  void give_up();
  void shake();
  void take_out(std::int32_t block);
  bool put_back(std::int32_t block);
  std::int64_t gap_for(std::int32_t block) const;
  Cost cheapest_for(std::int32_t block);
  void sort_lying(std::vector<Lying>& lying);
  double price(std::int32_t block) const { return penalty_[block] * worth_[block]; }

  const Grounds* grounds_;
  const Temper* temper_;
  Random random_;
  Gravity gravity_;
  std::vector<double> worth_, penalty_;
  std::vector<std::int64_t> offsets_, best_;
  std::int64_t peak_ = 0, roof_ = -1;  // roof_: -1 between rounds
  std::vector<std::pair<double, std::int32_t>> out_;  // a heap, the worthiest first
  double step_ = 0.1;  // of the way from the peak to the goal
  std::int64_t placed_ = 0, worked_ = 0, shaken_at_ = 0;
  int shakes_ = 0, hopeful_at_ = 0;  // of this round
  double least_out_ = 0;             // worth of what was out, at a shake

  std::vector<std::int32_t> met_, seen_;
  std::vector<Lying> bottoms_, tops_, unsorted_;
  std::vector<std::uint64_t> keys_, sorted_;
};

}  // namespace memplan::dsa
