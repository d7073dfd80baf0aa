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

namespace memplan::dsa {

/// A packing, and the priorities whose order gives it: the highest comes first.
struct Packing {
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();
  std::vector<double> priority;
  std::vector<std::int64_t> offsets;
};

class Lane;
struct Terrain;

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
  ~Search();

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

  Blocks blocks_;
  std::span<const std::int64_t> fixed_;
  std::optional<PieceBoard> board_;
  std::unique_ptr<Terrain> terrain_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Packer>> packers_;  // one a thread
  std::int64_t packed_ = 0;
  Packing best_;
};

}  // namespace memplan::dsa
