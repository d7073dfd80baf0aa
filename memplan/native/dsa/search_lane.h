// One of the searches that run side by side: walk, refine, walk again.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dsa/random.h"
#include "dsa/search_pack.h"
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

}  // namespace memplan::dsa
