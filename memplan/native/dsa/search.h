// Randomised search over orders of priority, at any time, on any number of threads.
#pragma once

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

  bool meet(std::int32_t a, std::int32_t b) const;
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
  Lane(const Terrain& terrain, std::size_t classic, std::uint64_t seed);

  /// Packs one order. shared: the best of all lanes; below: a peak that was reached
  /// elsewhere.
  void step(Packer& packer, const Packing& shared, std::int64_t below);

  const Packing& best() const { return best_; }

 private:
  void begin_walk(const Packing& shared);
  void begin_refining(const Packing& shared);
  void walk(Packer& packer, std::int64_t target);
  void refine(Packer& packer);
  void disturb_neighbours(std::int32_t block);
  void add_noise(double deviation);
  void sort_by_priority();
  void keep(const Packer& packer);

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
         const std::optional<Pieces>& pieces = {});

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
  void advance(const Limits& limits);

  std::int64_t packed() const { return packed_; }
  const Packing& best() const { return best_; }

 private:
  struct Round;

  void play(Round& round, int threads);
  std::unique_ptr<Packer> new_packer() const;

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
