// A hierarchy of set-associative caches with least-recently-used replacement.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "require.h"

namespace memplan::nest {

struct CacheGeometry {
  std::int64_t bytes, ways, line;
};

struct CacheCounts {
  std::int64_t accesses = 0, misses = 0, writebacks = 0;
};

/// One level. A set's lines lie most recently used first, so that a repeated reference
/// finds its line at once.
class CacheLevel {
 public:
  /// Throws std::invalid_argument for what cannot be built.
  explicit CacheLevel(const CacheGeometry& geometry) {
    const auto [bytes, ways, line] = geometry;
    require(bytes > 0 && ways > 0, "need bytes > 0 and ways > 0");
    require(line >= 4 && std::has_single_bit(static_cast<std::uint64_t>(line)),
            "a line must be a power of two, of 4 bytes or more");
    require(ways <= bytes / line && bytes % (ways * line) == 0,
            "a cache must be a whole number of sets of ways of lines");
    ways_ = static_cast<std::uint64_t>(ways);
    sets_ = static_cast<std::uint64_t>(bytes / line / ways);
    mask_ = std::has_single_bit(sets_) ? sets_ - 1 : 0;
    shift_ = std::countr_zero(static_cast<std::uint64_t>(line));
    slots_.assign(sets_ * ways_, kEmpty);
  }

  /// Whether the line was there. Afterwards it is, as the most recent one of its set,
  /// and dirty if `write` or if it was; `victim` is the slot it pushed out, if any.
  bool take(std::uint64_t line, bool write, std::uint64_t& victim) {
    std::uint64_t* const set = &slots_[set_of(line) * ways_];
    std::uint64_t carried = set[0];
    if (carried >> 1 == line) {
      set[0] = carried | static_cast<std::uint64_t>(write);
      return true;
    }
    for (std::uint64_t way = 1; way < ways_; ++way) {
      const std::uint64_t slot = set[way];
      set[way] = carried;
      if (slot >> 1 == line) {
        set[0] = slot | static_cast<std::uint64_t>(write);
        return true;
      }
      carried = slot;
    }
    set[0] = line << 1 | static_cast<std::uint64_t>(write);
    victim = carried;
    return false;
  }

  std::uint64_t line_of(std::uint64_t address) const { return address >> shift_; }
  std::uint64_t address_of(std::uint64_t line) const { return line << shift_; }

  static bool dirty(std::uint64_t slot) { return slot != kEmpty && (slot & 1) != 0; }

  CacheCounts counts;

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

  // Sets need not be a power of two: 12 MiB in 16 ways are 12288 sets.
  std::uint64_t set_of(std::uint64_t line) const {
    return mask_ != 0 ? line & mask_ : line % sets_;
  }

  std::uint64_t sets_, ways_, mask_;
  int shift_;
  std::vector<std::uint64_t> slots_;  // line << 1 | dirty
};

/// Levels from the core outwards: write-allocate, write-back, neither inclusive nor
/// exclusive. A level's misses are the next level's accesses. A dirty line that leaves
/// a level is written into the next one, as its most recent line and without a fetch;
/// that counts as a write-back of the level it leaves, not as an access. Lines that are
/// still dirty in the end are not counted.
class CacheSim {
 public:
  /// Throws std::invalid_argument for levels that cannot be built.
  explicit CacheSim(std::span<const CacheGeometry> levels) {
    require(!levels.empty(), "need a level");
    for (std::size_t i = 0; i < levels.size(); ++i) {
      require(i == 0 || levels[i - 1].line <= levels[i].line,
              "lines must not become smaller from level to level");
      levels_.emplace_back(levels[i]);
    }
  }

  /// `references` references in a row to one line of the first level.
  void touch(std::uint64_t address, bool write, std::int64_t references = 1) {
    CacheLevel& first = levels_.front();
    first.counts.accesses += references;
    const std::uint64_t line = first.line_of(address);
    std::uint64_t victim;
    if (!first.take(line, write, victim)) missed(0, line, victim);
  }

  /// `count` references, `stride` bytes apart; what lies in one line is looked up once.
  void run(std::uint64_t address, std::int64_t count, std::uint64_t stride,
           bool write) {
    const CacheLevel& first = levels_.front();
    while (count > 0) {
      const std::uint64_t line = first.line_of(address), start = address;
      std::int64_t together = 0;
      do {
        ++together;
        address += stride;
      } while (together < count && first.line_of(address) == line);
      touch(start, write, together);
      count -= together;
    }
  }

  const std::vector<CacheLevel>& levels() const { return levels_; }

 private:
  void missed(std::size_t level, std::uint64_t line, std::uint64_t victim) {
    CacheLevel& here = levels_[level];
    ++here.counts.misses;
    if (level + 1 < levels_.size()) {
      CacheLevel& next = levels_[level + 1];
      ++next.counts.accesses;
      const std::uint64_t outer = next.line_of(here.address_of(line));
      std::uint64_t pushed;
      if (!next.take(outer, false, pushed)) missed(level + 1, outer, pushed);
    }
    write_back(level, victim);
  }

  void write_back(std::size_t level, std::uint64_t victim) {
    if (!CacheLevel::dirty(victim)) return;
    CacheLevel& here = levels_[level];
    ++here.counts.writebacks;
    if (level + 1 == levels_.size()) return;
    CacheLevel& next = levels_[level + 1];
    const std::uint64_t outer = next.line_of(here.address_of(victim >> 1));
    std::uint64_t pushed;
    if (!next.take(outer, true, pushed)) write_back(level + 1, pushed);
  }

  std::vector<CacheLevel> levels_;
};

}  // namespace memplan::nest
