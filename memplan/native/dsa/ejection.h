// Search by ejection, at any time, on any number of threads.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "dsa/bestfit.h"

namespace memplan::dsa {

class EjectionLane;
class Grounds;

/// Makes a packing lower and lower, by taking blocks out and putting them back.
///
/// Some lanes work in rounds, and learn of each other's best only between rounds: what
/// they find depends on the seed and on the number of rounds, but not on the threads.
class Ejection {
 public:
  /// fixed: offsets that are given, -1 for none; empty if all are free.
  /// offsets: a packing to begin with, in which every block lies where it may.
  Ejection(const Blocks& blocks, std::span<const std::int64_t> fixed,
           std::span<const std::int64_t> offsets, std::uint64_t seed);
  ~Ejection();

  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

  struct Limits {
    std::int64_t goal = 0;        // stop at a peak of so many bytes, or less
    std::int64_t placements = 0;  // stop when so many were made, since the beginning
    double seconds = 0;           // stop between rounds after so long
    double hard_seconds = 0;  // stop even within one: not repeatable from then on
    int threads = 1;
    std::int64_t work = kEndless;  // of all lanes, since the beginning
  };

  /// Another packing: if it is better, lanes that are not already at work on a better
  /// one go on from there.
  void offer(std::span<const std::int64_t> offsets);

  /// Searches on until one of the limits says stop.
  void advance(const Limits& limits);

  std::int64_t placed() const;
  std::int64_t worked() const;  // units of work, whatever the machine
  std::int64_t peak() const;
  std::vector<std::int64_t> offsets() const;

 private:
  void play(const Limits& limits, double left);
  void share();
  std::vector<std::int64_t> renumbered(std::span<const std::int64_t> offsets) const;

  std::unique_ptr<const Grounds> grounds_;
  std::vector<std::unique_ptr<EjectionLane>> lanes_;
  std::size_t best_ = 0;
};

}  // namespace memplan::dsa
