// Randomised search over orders of priority, at any time, on any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/packers.h"
#include "dsa/random.h"
#include "dsa/sections.h"
#include "parallel.h"

namespace memplan::dsa {

/// A packing, and the priorities whose order gives it: the highest comes first.
struct Packing {
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();
  std::vector<double> priority;
  std::vector<std::int64_t> offsets;
};

/// What all lanes share and none changes.
struct Terrain {
  Sections sections;
  std::span<const std::int64_t> size, taken;  // taken: that count for the peak
  std::vector<std::int32_t> movable;         // the blocks to place
  std::vector<std::vector<double>> classic;  // priorities by block, to start from

  bool meet(std::int32_t a, std::int32_t b) const {
    const auto overlap = [&](std::int32_t shift) {
      return sections.start[a] < sections.end[b] + shift &&
             sections.start[b] + shift < sections.end[a];
    };
    return overlap(0) || overlap(sections.count) || overlap(-sections.count);
  }
};

/// Squeaky wheel (Joslin and Clements 1999), and local search about its best.
///
/// A walk packs, lifts the priority of all that came too late to end below the best
/// peak so far, and packs again. When that leads nowhere for a while, the best order is
/// refined: some blocks alive beside one that touches the peak change their priority,
/// and what is no worse is kept. When that leads nowhere, another walk begins, from a
/// disturbed order.
class Lane {
 public:
  /// classic: which priorities the first walk starts from.
  Lane(const Terrain& terrain, std::size_t classic, std::uint64_t seed)
      : terrain_(&terrain),
        random_(seed),
        priority_(terrain.classic[classic]),
        order_(terrain.movable),
        patience_(patience_for(order_.size())) {}

  /// Packs one order. shared: the best of all lanes; below: a peak that was reached
  /// elsewhere.
  void step(Packer& packer, const Packing& shared, std::int64_t below) {
    if (idle_ > patience_) {
      walking_ = !walking_;
      idle_ = 0;
      if (walking_) {
        begin_walk(shared);
      } else {
        begin_refining(shared);
      }
    }
    ++idle_;
    if (walking_) {
      // What any order reaches comes first: there must be one to begin again from.
      const bool begun = shared.peak != Packing{}.peak;
      const std::int64_t reached = std::min(best_.peak, shared.peak);
      walk(packer, (begun ? std::min(reached, below) : reached) - 1);
    } else {
      refine(packer);
    }
  }

  const Packing& best() const { return best_; }

 private:
  static constexpr std::size_t kInsertionSort = 1024;
  static constexpr std::size_t kMostDisturbed = 6;

  // Orders packed in vain before a lane tries something else; the more blocks, the fewer,
  // for each takes longer. Measured on problems of 150 to 30,000 blocks.
  static std::int64_t patience_for(std::size_t blocks) {
    const std::size_t tries = 400'000 / std::max<std::size_t>(blocks, 1);
    return static_cast<std::int64_t>(std::clamp<std::size_t>(tries, 12, 1000));
  }

  // Ascending keys for descending priorities.
  static std::uint64_t descending(double priority) {
    const auto bits = std::bit_cast<std::uint64_t>(priority);
    constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
    return (bits & kSign) != 0 ? bits : ~(bits | kSign);
  }

  void begin_walk(const Packing& shared) {
    const double deviation = random_.uniform();
    stride_ = std::exp(-3 + 3.4 * random_.uniform());  // 0.05 to 1.5
    if (random_.below(2) == 0) {
      priority_ = best_.peak < shared.peak ? best_.priority : shared.priority;
      add_noise(0.2 * deviation);
    } else {
      priority_ = terrain_->classic[random_.below(terrain_->classic.size())];
      add_noise(deviation);
    }
  }

  void begin_refining(const Packing& shared) {
    if (shared.peak < best_.peak) best_ = shared;
  }

  void walk(Packer& packer, std::int64_t target) {
    sort_by_priority();
    if (packer.pack(order_, target)) {
      keep(packer);
      idle_ = 0;
      return;
    }
    for (const std::int32_t block : packer.late()) {
      priority_[block] += stride_ * random_.uniform();
    }
  }

  void refine(Packer& packer) {
    std::size_t peaks = 0;
    std::int32_t culprit = order_.front();
    for (const std::int32_t block : order_) {
      if (best_.offsets[block] + terrain_->taken[block] < best_.peak) continue;
      if (random_.below(++peaks) == 0) culprit = block;
    }
    priority_ = best_.priority;
    disturb_neighbours(culprit);
    sort_by_priority();
    const std::int64_t before = best_.peak;
    if (packer.pack(order_, before)) {
      keep(packer);
      if (best_.peak < before) idle_ = 0;
    }
  }

  /// Either some of those alive beside the block, the large ones rather than the small,
  /// or all of them by a little.
  void disturb_neighbours(std::int32_t block) {
    neighbours_.clear();
    double bytes = 0;
    for (const std::int32_t other : terrain_->movable) {
      if (!terrain_->meet(block, other)) continue;
      neighbours_.push_back(other);
      bytes += static_cast<double>(terrain_->size[other]);
    }
    if (random_.below(4) == 0) {
      const double deviation = std::exp(-6.9 * random_.uniform());  // 0.001 to 1
      for (const std::int32_t other : neighbours_) {
        priority_[other] += deviation * random_.normal();
      }
      return;
    }
    for (std::size_t count = 1 + random_.below(kMostDisturbed); count > 0; --count) {
      double left = random_.uniform() * bytes;
      std::size_t k = 0;
      while (k + 1 < neighbours_.size()) {
        left -= static_cast<double>(terrain_->size[neighbours_[k]]);
        if (left < 0) break;
        ++k;
      }
      priority_[neighbours_[k]] += random_.normal();
    }
  }

  void add_noise(double deviation) {
    for (const std::int32_t block : terrain_->movable) {
      priority_[block] += deviation * random_.normal();
    }
  }

  /// Equal priorities go by index, whatever the order was before.
  void sort_by_priority() {
    if (order_.size() > kInsertionSort) {
      std::vector<std::uint64_t> keys(order_.size());
      for (std::size_t k = 0; k < keys.size(); ++k) {
        keys[k] = descending(priority_[terrain_->movable[k]]);
      }
      order_ = stable_order(keys);
      for (std::int32_t& k : order_) k = terrain_->movable[k];
      return;
    }
    for (std::size_t k = 1; k < order_.size(); ++k) {  // it is nearly sorted
      const std::int32_t block = order_[k];
      const double priority = priority_[block];
      std::size_t j = k;
      for (; j > 0; --j) {
        const std::int32_t other = order_[j - 1];
        if (priority_[other] > priority) break;
        if (priority_[other] == priority && other < block) break;
        order_[j] = other;
      }
      order_[j] = block;
    }
  }

  void keep(const Packer& packer) {
    best_.priority = priority_;
    best_.offsets.assign(packer.offsets().begin(), packer.offsets().end());
    best_.peak = 0;
    for (std::size_t i = 0; i < best_.offsets.size(); ++i) {
      best_.peak = std::max(best_.peak, best_.offsets[i] + terrain_->taken[i]);
    }
  }

  const Terrain* terrain_;
  Random random_;
  std::vector<double> priority_;
  std::vector<std::int32_t> order_, neighbours_;
  Packing best_;
  bool walking_ = true;
  double stride_ = 1.0;
  std::int64_t idle_ = 0, patience_;
};

/// Looks for orders of priority that pack lower and lower.
///
/// One lane for each of the classic priorities. Lanes work in rounds, and learn of each
/// other's best only between rounds: what they find depends on the seed and on the
/// number of rounds, but not on the threads.
class Search {
 public:
  /// blocks: must outlive the search, as must `fixed`: offsets that are given, -1 for
  /// none; empty if all are free.
  /// classic: priorities to start from, at least one; each a finite number per block.
  /// pieces: what blocks use, where that is less than all of them all their life.
  Search(const Blocks& blocks, std::span<const std::int64_t> fixed,
         std::vector<std::vector<double>> classic, std::uint64_t seed,
         const std::optional<Pieces>& pieces = {})
      : blocks_(blocks),
        fixed_(fixed),
        terrain_(cut_into_sections(blocks.lower, blocks.upper, blocks.period),
                 blocks.size, blocks.peaks(), std::vector<std::int32_t>{},
                 std::move(classic)) {
    for (std::size_t i = 0; i < blocks.size.size(); ++i) {
      if (fixed.empty() || fixed[i] < 0) {
        terrain_.movable.push_back(static_cast<std::int32_t>(i));
      }
    }
    if (pieces) board_.emplace(*pieces, blocks.size.size());
    Random seeds(seed);
    for (std::size_t k = 0; k < terrain_.classic.size(); ++k) {
      lanes_.emplace_back(terrain_, k, seeds.bits());
    }
  }

  Search(const Search&) = delete;  // lanes point into it
  Search& operator=(const Search&) = delete;

  struct Limits {
    std::int64_t goal = 0;    // stop at a peak of so many bytes, or less
    std::int64_t orders = 0;  // stop when so many are packed, since the beginning
    double seconds = 0;       // stop between rounds after so long
    double hard_seconds = 0;  // stop even within a round: not repeatable from then on
    int threads = 1;
    // A peak that is known to be possible: walks look for a lower one.
    std::int64_t below = std::numeric_limits<std::int64_t>::max();
  };

  /// Searches on until one of the limits says stop.
  void advance(const Limits& limits) {
    const auto start = Clock::now();
    const auto lanes = static_cast<std::int64_t>(lanes_.size());
    const std::size_t blocks = std::max<std::size_t>(terrain_.movable.size(), 1);
    const auto longest =
        static_cast<std::int64_t>(std::max<std::size_t>(kBlocksARound / blocks, 1));
    if (terrain_.movable.empty()) return;
    while (best_.peak > limits.goal && packed_ < limits.orders &&
           seconds_since(start) < limits.seconds) {
      const std::int64_t wanted = (limits.orders - packed_ + lanes - 1) / lanes;
      Round round{std::min(longest, wanted), limits.goal, limits.below,
                  limits.hard_seconds, start};
      play(round, std::clamp(limits.threads, 1, static_cast<int>(lanes)));
      packed_ += round.orders * lanes;

      if (round.first != kNobody) {
        best_ = lanes_[static_cast<std::size_t>(round.first % lanes)].best();
        return;
      }
      for (const Lane& lane : lanes_) {
        if (lane.best().peak < best_.peak) best_ = lane.best();
      }
      if (round.cut_short) return;
    }
  }

  std::int64_t packed() const { return packed_; }
  const Packing& best() const { return best_; }

 private:
  // A round should last some milliseconds: this many blocks placed by each lane.
  static constexpr std::size_t kBlocksARound = 1 << 15;
  static constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();

  /// Every lane packs `orders` orders, or fewer once the goal is reached. The winner is
  /// whoever needs the fewest, the first lane among equals: lanes that could still win
  /// go on, so that it is the same one however they are spread over threads.
  struct Round {
    std::int64_t orders, goal, below;
    double seconds;
    Clock::time_point start;
    std::atomic<std::size_t> next_lane{0};
    std::atomic<std::int64_t> first{kNobody};
    std::atomic<bool> cut_short{false};

    void win(std::int64_t key) {
      std::int64_t seen = first;
      while (key < seen && !first.compare_exchange_weak(seen, key)) {
      }
    }
  };

  void play(Round& round, int threads) {
    const auto count = static_cast<std::int64_t>(lanes_.size());
    const auto work = [&](Packer& packer) {
      for (;;) {
        const std::size_t index = round.next_lane++;
        if (index >= lanes_.size()) return;
        Lane& lane = lanes_[index];
        for (std::int64_t k = 0; k < round.orders; ++k) {
          const std::int64_t key = k * count + static_cast<std::int64_t>(index);
          if (key > round.first) break;
          if (seconds_since(round.start) >= round.seconds) {
            round.cut_short = true;
            return;
          }
          lane.step(packer, best_, round.below);
          if (lane.best().peak <= round.goal) {
            round.win(key);
            break;
          }
        }
      }
    };
    const PieceBoard* board = board_ ? &*board_ : nullptr;
    while (packers_.size() < static_cast<std::size_t>(threads)) {
      packers_.push_back(make_packer(blocks_, fixed_, terrain_.sections, board));
    }
    for_each(0, threads, threads, [&](std::int32_t k) { work(*packers_[k]); });
  }

  Blocks blocks_;
  std::span<const std::int64_t> fixed_;
  std::optional<PieceBoard> board_;
  Terrain terrain_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Packer>> packers_;  // one a thread
  std::int64_t packed_ = 0;
  Packing best_;
};

}  // namespace memplan::dsa
