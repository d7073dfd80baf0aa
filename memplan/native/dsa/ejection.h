// Search by ejection, at any time, on any number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/ejection_board.h"
#include "dsa/random.h"
#include "parallel.h"

namespace memplan::dsa {

/// What makes one lane differ from another.
struct Temper {
  double life_power;  // a block counts as size * life ^ this when it is to be ejected
  bool tightest;  // takes the tightest of the gaps that fit, not the lowest
  double patience;  // multiplies how long it goes on in vain
};

// No weight of life is the best everywhere, nor is the choice of gaps.
inline constexpr std::array<Temper, 4> kTempers = {{
    {0.5, false, 1.0},
    {1.0, true, 1.0},
    {0.5, true, 0.4},
    {0.0, false, 2.0},
}};

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
               std::span<const std::int64_t> offsets)
      : grounds_(&grounds),
        temper_(&temper),
        random_(seed),
        gravity_(grounds),
        penalty_(grounds.bytes.size(), 1.0),
        offsets_(offsets.begin(), offsets.end()) {
    for (std::int32_t i = 0; i < grounds.size(); ++i) {
      const double life = grounds.end[i] - grounds.start[i];
      worth_.push_back(static_cast<double>(grounds.bytes[i]) *
                       std::pow(life, temper.life_power));
    }
    keep(offsets_);
  }

  /// Works for a while, to reach `goal` or below; `stop` is asked now and then, and
  /// ends it at once. Units of work are blocks looked at, whatever the machine.
  void run(std::int64_t goal, std::int64_t work, const std::function<bool()>& stop) {
    const double unhurried = kWorkAShake * temper_->patience * grounds_->size();
    const auto shake_every = std::max(static_cast<std::int64_t>(unhurried), kLeastWork);
    const std::int64_t until = worked_ + work;
    std::int64_t look = worked_ + kStopEvery;
    while (worked_ < until && peak_ > goal) {
      if (worked_ >= look) {
        if (stop()) return;
        look = worked_ + kStopEvery;
      }
      if (roof_ < 0) begin_round(goal);
      if (out_.empty()) {
        end_round();
      } else if (shakes_ - hopeful_at_ > kShakes) {
        give_up();
      } else if (worked_ - shaken_at_ >= shake_every) {
        shake();
      } else {
        std::ranges::pop_heap(out_);
        const std::int32_t block = out_.back().second;
        out_.pop_back();
        if (!put_back(block)) {
          take_out(block);
          give_up();
        }
      }
    }
  }

  /// Goes on from this packing; what was out is put where that has it.
  void adopt(std::span<const std::int64_t> offsets) {
    keep(offsets);
    offsets_ = best_;
    out_.clear();
    roof_ = -1;
  }

  std::int64_t peak() const { return peak_; }
  std::int64_t roof() const { return roof_; }
  std::int64_t placed() const { return placed_; }
  std::int64_t worked() const { return worked_; }
  std::span<const std::int64_t> best() const { return best_; }

 private:
  // Work between two shakes, for each block; and how many a roof is given after the last
  // one before which less was out than ever.
  static constexpr double kWorkAShake = 300;
  static constexpr std::int64_t kLeastWork = 20'000;
  static constexpr std::int64_t kWorkABlock = 16;  // beside what is looked at
  static constexpr int kShakes = 8;

  static constexpr double kMostOfTheWay = 1.0, kLeastOfTheWay = 0.002;
  static constexpr std::int64_t kStopEvery =
      1 << 14;  // work between two looks at the clock
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static constexpr int kDigit = 11;  // bits
  static constexpr std::size_t kRadix = 128;  // sort fewer by comparing

  struct Lying {
    std::int64_t at;  // its bottom, or its top
    std::int32_t block;
  };
  struct Cost {
    double price;
    std::int64_t offset;
  };

  void keep(std::span<const std::int64_t> offsets) {
    best_.assign(offsets.begin(), offsets.end());
    peak_ = 0;
    for (std::int32_t i = 0; i < grounds_->size(); ++i) {
      peak_ = std::max(peak_, best_[i] + grounds_->bytes[i]);
    }
  }

  void begin_round(std::int64_t goal) {
    const auto way = static_cast<double>(peak_ - goal);
    roof_ = std::clamp(peak_ - static_cast<std::int64_t>(way * step_), goal, peak_ - 1);
    shakes_ = hopeful_at_ = 0;
    least_out_ = kNever;
    shaken_at_ = worked_;
    for (std::int32_t i = 0; i < grounds_->size(); ++i) {
      const bool above = offsets_[i] + grounds_->bytes[i] > roof_;
      if (above && !grounds_->is_fixed(i)) take_out(i);
    }
    worked_ += grounds_->size();
  }

  /// All are back: that is a better packing.
  void end_round() {
    gravity_.fall(offsets_);
    worked_ += kWorkABlock * grounds_->size();
    keep(offsets_);
    step_ = std::min(1.5 * step_, kMostOfTheWay);
    roof_ = -1;
  }

  /// The next roof is nearer to the peak; nothing is known of what is hard to place.
  void give_up() {
    offsets_ = best_;
    out_.clear();
    std::ranges::fill(penalty_, 1.0);
    step_ = std::max(0.5 * step_, kLeastOfTheWay);
    roof_ = -1;
  }

  void shake() {
    double out = 0;
    for (const auto& [worth, block] : out_) out += worth;
    if (out < least_out_) {
      least_out_ = out;
      hopeful_at_ = shakes_;
    }
    if (shakes_++ % 2 == 0) {
      gravity_.fall(offsets_);
    } else {
      gravity_.rise(offsets_, roof_);
    }
    worked_ += kWorkABlock * grounds_->size();
    shaken_at_ = worked_;
  }

  void take_out(std::int32_t block) {
    offsets_[block] = -1;
    out_.emplace_back(worth_[block], block);
    std::ranges::push_heap(out_);
  }

  /// Puts a block beneath the roof, and takes out what is in its way. False if fixed
  /// blocks leave it no place at all.
  bool put_back(std::int32_t block) {
    ++placed_;
    const Grounds& g = *grounds_;
    worked_ += kWorkABlock + g.meeting(block, offsets_, met_, seen_);
    bottoms_.clear();
    for (const std::int32_t i : met_) bottoms_.push_back({offsets_[i], i});
    sort_lying(bottoms_);
    worked_ += static_cast<std::int64_t>(met_.size());
    const std::int64_t gap = gap_for(block);
    if (gap >= 0) {
      offsets_[block] = gap;
      return true;
    }
    penalty_[block] += 1;
    const Cost cheapest = cheapest_for(block);
    worked_ += static_cast<std::int64_t>(met_.size());
    if (cheapest.price == kNever) return false;
    const std::int64_t top = cheapest.offset + g.bytes[block];
    offsets_[block] = cheapest.offset;
    for (const auto& [bottom, i] : bottoms_) {
      if (bottom >= top) break;
      if (bottom + g.bytes[i] > cheapest.offset) take_out(i);
    }
    return true;
  }

  /// Where there is room for it, or -1.
  std::int64_t gap_for(std::int32_t block) const {
    const Grounds& g = *grounds_;
    const std::int64_t size = g.bytes[block];
    std::int64_t found = -1, least = std::numeric_limits<std::int64_t>::max(), top = 0;
    const auto consider = [&](std::int64_t ceiling) {
      const std::int64_t offset = g.up(top, block), slack = ceiling - offset - size;
      if (slack < 0 || slack >= least) return;
      found = offset;
      least = slack;
    };
    for (const auto& [bottom, i] : bottoms_) {
      if (bottom > top) consider(bottom);
      if (found >= 0 && !temper_->tightest) return found;
      top = std::max(top, bottom + g.bytes[i]);
    }
    consider(roof_);
    return found;
  }

  /// The offset at which what is in the way is worth least, one of equals at random; to
  /// look at are those where the block touches the top or the bottom of another.
  Cost cheapest_for(std::int32_t block) {
    const Grounds& g = *grounds_;
    const std::int64_t size = g.bytes[block];
    tops_.clear();
    for (const auto& [bottom, i] : bottoms_) tops_.push_back({bottom + g.bytes[i], i});
    sort_lying(tops_);
    Cost best{kNever, 0};
    std::size_t ties = 0, begun = 0, ended = 0;
    double prices = 0, walls = 0;  // of those begun and not yet ended; fixed ones
    const auto count_in = [&](std::int32_t i, double sign) {
      if (g.is_fixed(i)) {
        walls += sign;
      } else {
        prices += sign * price(i);
      }
    };
    const auto consider = [&](std::int64_t offset) {  // in ascending order
      if (offset < 0 || offset > roof_ - size) return;
      while (begun < bottoms_.size() && bottoms_[begun].at < offset + size) {
        count_in(bottoms_[begun++].block, 1);
      }
      while (ended < tops_.size() && tops_[ended].at <= offset) {
        count_in(tops_[ended++].block, -1);
      }
      if (walls > 0.5) return;
      if (prices < best.price * (1 - 1e-9)) {
        best = {prices, offset};
        ties = 1;
      } else if (prices <= best.price * (1 + 1e-9) && random_.below(++ties) == 0) {
        best.offset = offset;
      }
    };
    consider(0);
    for (const Lying& top : tops_) consider(g.up(top.at, block));
    begun = ended = 0;
    prices = walls = 0;
    for (const Lying& bottom : bottoms_) {
      if (bottom.at >= size) consider(g.down(bottom.at - size, block));
    }
    if (roof_ >= size) consider(g.down(roof_ - size, block));
    return best;
  }

  /// Ascending by where they end or begin.
  void sort_lying(std::vector<Lying>& lying) {
    const auto bits = std::bit_width(static_cast<std::uint64_t>(roof_));
    const auto shift = std::bit_width(lying.size());
    if (lying.size() < kRadix || bits + shift > 64) {
      std::ranges::sort(lying, {},
                        [](const Lying& l) { return std::pair(l.at, l.block); });
      return;
    }
    keys_.resize(lying.size());
    sorted_.resize(lying.size());
    for (std::size_t k = 0; k < lying.size(); ++k) {
      keys_[k] = static_cast<std::uint64_t>(lying[k].at) << shift | k;
    }
    constexpr std::uint64_t kMask = (1 << kDigit) - 1;
    for (auto low = shift; low < shift + bits; low += kDigit) {
      std::array<std::uint32_t, kMask + 1> from{};
      for (const std::uint64_t key : keys_) ++from[key >> low & kMask];
      std::uint32_t sum = 0;
      for (std::uint32_t& entry : from) sum += std::exchange(entry, sum);
      for (const std::uint64_t key : keys_) sorted_[from[key >> low & kMask]++] = key;
      keys_.swap(sorted_);
    }
    unsorted_.swap(lying);
    lying.resize(keys_.size());
    const std::uint64_t index = (std::uint64_t{1} << shift) - 1;
    for (std::size_t k = 0; k < lying.size(); ++k) {
      lying[k] = unsorted_[keys_[k] & index];
    }
  }

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
  double least_out_ = 0;  // worth of what was out, at a shake

  std::vector<std::int32_t> met_, seen_;
  std::vector<Lying> bottoms_, tops_, unsorted_;
  std::vector<std::uint64_t> keys_, sorted_;
};

/// Makes a packing lower and lower, by taking blocks out and putting them back.
///
/// Some lanes work in rounds, and learn of each other's best only between rounds: what
/// they find depends on the seed and on the number of rounds, but not on the threads.
class Ejection {
 public:
  /// fixed: offsets that are given, -1 for none; empty if all are free.
  /// offsets: a packing to begin with, in which every block lies where it may.
  Ejection(const Blocks& blocks, std::span<const std::int64_t> fixed,
           std::span<const std::int64_t> offsets, std::uint64_t seed)
      : grounds_(std::make_unique<const Grounds>(blocks, fixed)) {
    const std::vector<std::int64_t> first = renumbered(offsets);
    Random seeds(seed);
    const std::size_t count = grounds_->size() > kMany ? kLanesForMany
                                                       : kTempers.size();
    for (std::size_t k = 0; k < count; ++k) {
      lanes_.push_back(
          std::make_unique<EjectionLane>(*grounds_, kTempers[k], seeds.bits(), first));
    }
  }

  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

  struct Limits {
    std::int64_t goal = 0;  // stop at a peak of so many bytes, or less
    std::int64_t placements = 0;  // stop when so many were made, since the beginning
    double seconds = 0;  // stop between rounds after so long
    double hard_seconds = 0;  // stop even within one: not repeatable from then on
    int threads = 1;
    std::int64_t work = kEndless;  // of all lanes, since the beginning
  };

  /// Another packing: if it is better, lanes that are not already at work on a better
  /// one go on from there.
  void offer(std::span<const std::int64_t> offsets) {
    const std::vector<std::int64_t> packing = renumbered(offsets);
    std::int64_t offered = 0;
    for (std::size_t k = 0; k < packing.size(); ++k) {
      offered = std::max(offered, packing[k] + grounds_->bytes[k]);
    }
    if (offered >= peak()) return;
    const auto worst = std::ranges::max_element(
        lanes_, {}, [](const auto& lane) { return lane->peak(); });
    (*worst)->adopt(packing);
    share();
  }

  /// Searches on until one of the limits says stop.
  void advance(const Limits& limits) {
    const auto start = Clock::now();
    while (peak() > limits.goal && placed() < limits.placements &&
           worked() < limits.work) {
      const double spent = seconds_since(start);
      if (spent >= limits.seconds || spent >= limits.hard_seconds) return;
      play(limits, limits.hard_seconds - spent);
      share();
    }
  }

  std::int64_t placed() const {
    std::int64_t placed = 0;
    for (const auto& lane : lanes_) placed += lane->placed();
    return placed;
  }
  std::int64_t worked() const {
    std::int64_t worked = 0;
    for (const auto& lane : lanes_) worked += lane->worked();
    return worked;
  }  // units of work, whatever the machine
  std::int64_t peak() const { return lanes_[best_]->peak(); }
  std::vector<std::int64_t> offsets() const {
    std::vector<std::int64_t> offsets(grounds_->original.size());
    for (std::size_t k = 0; k < offsets.size(); ++k) {
      offsets[grounds_->original[k]] = lanes_[best_]->best()[k];
    }
    return offsets;
  }

 private:
  // Of very many blocks each lane takes much memory, and long to come anywhere.
  static constexpr std::int32_t kMany = 50'000;
  static constexpr std::size_t kLanesForMany = 2;

  static constexpr std::int64_t kWorkARound =
      2'000'000;  // of each lane: some milliseconds

  /// A round of every lane, on so many threads.
  void play(const Limits& limits, double left) {
    const auto start = Clock::now();
    const std::function<bool()> stop = [&] { return seconds_since(start) >= left; };
    const auto most = static_cast<std::int32_t>(lanes_.size());
    for_each(0, most, std::max(limits.threads, 1),
             [&](std::int32_t k) { lanes_[k]->run(limits.goal, kWorkARound, stop); });
  }
  /// Lanes whose roof is no lower than the best peak go on from there.
  void share() {
    for (std::size_t k = 0; k < lanes_.size(); ++k) {
      if (lanes_[k]->peak() < lanes_[best_]->peak()) best_ = k;
    }
    const EjectionLane& best = *lanes_[best_];
    for (const auto& lane : lanes_) {
      const bool vain = lane->roof() < 0 || lane->roof() >= best.peak();
      if (lane->peak() > best.peak() && vain) lane->adopt(best.best());
    }
  }
  std::vector<std::int64_t> renumbered(std::span<const std::int64_t> offsets) const {
    std::vector<std::int64_t> packing;
    for (const std::int32_t i : grounds_->original) packing.push_back(offsets[i]);
    return packing;
  }

  std::unique_ptr<const Grounds> grounds_;
  std::vector<std::unique_ptr<EjectionLane>> lanes_;
  std::size_t best_ = 0;
};

}  // namespace memplan::dsa
