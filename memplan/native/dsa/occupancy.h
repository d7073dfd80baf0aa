// Who has which bytes when: the search for a gap between blocks placed before.
#pragma once

#include <cstdint>
#include <vector>

#include "dsa/sections.h"

namespace memplan::dsa {

/// The bytes [begin, top) are taken during the sections [start, end).
struct Stay {
  std::int64_t begin, top;
  std::int32_t start, end;
};

/// A lifespan in one run of sections, or in two where it reaches over the period.
struct Runs {
  std::int32_t start, end, start_again = 0, end_again = 0;

  Runs(const Sections& sections, std::int32_t block);

  bool meet(const Stay& stay) const {
    return ((stay.start < end) & (start < stay.end)) |
           ((stay.start < end_again) & (start_again < stay.end));
  }
};

/// Stays in ascending order of `begin`, in chunks, so that inserting moves few.
class Shelf {
 public:
  /// How far a search has come; it only moves on, and so does its offset.
  struct Cursor {
    std::size_t chunk = 0, index = 0;
  };

  void insert(const Stay& stay);

  /// The lowest multiple of `unit`, from `offset` up, where `size` bytes touch none
  /// of the stays that meet the runs.
  std::int64_t climb(Cursor& cursor, const Runs& runs, std::int64_t offset,
                     std::int64_t size, std::int64_t unit) const;

 private:
  struct Chunk {
    std::vector<Stay> stays;
    std::int64_t highest = 0;  // top
  };

  std::vector<Chunk> chunks_;
};

/// All stays, on several levels: level k cuts time into 2^k buckets, and a stay is on
/// the shelf of every bucket it touches. A search takes the finest level whose buckets
/// are as long as its lifespan, and looks at two shelves, or three on a circle.
class Occupancy {
 public:
  /// As many levels as take O(n) memory when all blocks of `sections` are in.
  explicit Occupancy(const Sections& sections);

  void add(const Runs& runs, std::int64_t begin, std::int64_t top);

  /// The lowest multiple of `unit` where `size` bytes are free during the runs; or, if
  /// that is above `limit`, anything above it.
  std::int64_t lowest_gap(const Runs& runs, std::int64_t size, std::int64_t unit,
                          std::int64_t limit) const;

 private:
  struct Level {
    std::int32_t width;  // of a bucket, in sections
    std::vector<Shelf> shelves;
  };

  std::vector<Level> levels_;
};

}  // namespace memplan::dsa
