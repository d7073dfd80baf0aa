#include "dsa/gaps.h"

#include <algorithm>
#include <array>
#include <vector>

namespace memplan::dsa {
namespace {

constexpr std::size_t kChunk = 64;
constexpr std::int64_t kStaysPerBlock = 8;  // on all levels together, on average

std::int32_t cut(std::int32_t length, std::int32_t pieces) {
  return (length + pieces - 1) / pieces;
}

/// The bytes [begin, top) are taken during the sections [start, end).
struct Stay {
  std::int64_t begin, top;
  std::int32_t start, end;
};

/// A lifespan in one run of sections, or in two where it reaches over the period.
struct Runs {
  std::int32_t start, end, start_again = 0, end_again = 0;

  Runs(const Sections& sections, std::int32_t block)
      : start(sections.start[block]), end(sections.end[block]) {
    if (end > sections.count) {
      end_again = end - sections.count;
      end = sections.count;
    }
  }

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

  void insert(const Stay& stay) {
    if (chunks_.empty()) chunks_.emplace_back();
    const auto before = [](std::int64_t begin, const Stay& other) {
      return begin < other.begin;
    };
    auto chunk = std::upper_bound(
        chunks_.begin() + 1, chunks_.end(), stay.begin,
        [&](auto begin, const Chunk& c) { return before(begin, c.stays.front()); });
    --chunk;
    if (chunk->stays.size() == kChunk) {
      Chunk upper;
      const auto half = chunk->stays.begin() + kChunk / 2;
      upper.stays.assign(half, chunk->stays.end());
      upper.highest = chunk->highest;  // or a little less: only a hint
      chunk->stays.erase(half, chunk->stays.end());
      const bool goes_up = !before(stay.begin, upper.stays.front());
      chunk = chunks_.insert(chunk + 1, std::move(upper));
      if (!goes_up) --chunk;
    }
    auto& stays = chunk->stays;
    stays.insert(std::upper_bound(stays.begin(), stays.end(), stay.begin, before),
                 stay);
    chunk->highest = std::max(chunk->highest, stay.top);
  }

  /// The lowest multiple of `unit`, from `offset` up, where `size` bytes touch none
  /// of the stays that meet the runs.
  std::int64_t climb(Cursor& cursor, const Runs& runs, std::int64_t offset,
                     std::int64_t size, std::int64_t unit) const {
    for (; cursor.chunk < chunks_.size(); ++cursor.chunk, cursor.index = 0) {
      const Chunk& chunk = chunks_[cursor.chunk];
      if (chunk.highest <= offset) continue;
      for (; cursor.index < chunk.stays.size(); ++cursor.index) {
        const Stay& stay = chunk.stays[cursor.index];
        if (stay.begin >= offset + size) return offset;  // and so are all after it
        if (stay.top > offset && runs.meet(stay)) {
          offset = (stay.top + unit - 1) / unit * unit;
        }
      }
    }
    return offset;
  }

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
  explicit Occupancy(const Sections& sections) {
    const auto n = static_cast<std::int64_t>(sections.start.size());
    std::int64_t stays = 0;
    for (std::int32_t buckets = 1; buckets <= std::max(1, sections.count);
         buckets *= 2) {
      const std::int32_t width = std::max(1, cut(sections.count, buckets));
      for (std::int64_t i = 0; i < n; ++i) {
        stays += (sections.end[i] - 1) / width - sections.start[i] / width + 1;
      }
      if (buckets > 1 && stays > kStaysPerBlock * n) break;
      levels_.push_back({width, std::vector<Shelf>(buckets)});
    }
  }

  void add(const Runs& runs, std::int64_t begin, std::int64_t top) {
    const auto add_run = [&](Level& level, std::int32_t start, std::int32_t end) {
      for (std::int32_t b = start / level.width; b * level.width < end; ++b) {
        level.shelves[b].insert({begin, top, start, end});
      }
    };
    for (Level& level : levels_) {
      add_run(level, runs.start, runs.end);
      if (runs.end_again > 0) add_run(level, runs.start_again, runs.end_again);
    }
  }

  /// The lowest multiple of `unit` where `size` bytes are free during the runs; or, if
  /// that is above `limit`, anything above it.
  std::int64_t lowest_gap(const Runs& runs, std::int64_t size, std::int64_t unit,
                          std::int64_t limit) const {
    const std::int32_t length =
        runs.end - runs.start + runs.end_again - runs.start_again;
    const auto level = std::find_if(levels_.rbegin(), levels_.rend() - 1,
                                    [&](const Level& l) { return l.width >= length; });

    struct Search {
      const Shelf* shelf;
      Shelf::Cursor cursor;
    };
    std::array<Search, 4> searches;
    std::size_t count = 0;
    const auto search_run = [&](std::int32_t start, std::int32_t end) {
      for (std::int32_t b = start / level->width; b * level->width < end; ++b) {
        searches[count++] = {&level->shelves[b], {}};
      }
    };
    search_run(runs.start, runs.end);
    if (runs.end_again > 0) search_run(runs.start_again, runs.end_again);

    // Whoever lifts the offset makes the others look again, further up.
    std::int64_t offset = 0;
    for (std::size_t agreed = 0, k = 0; agreed < count && offset <= limit;
         k = (k + 1) % count) {
      const std::int64_t before = offset;
      offset = searches[k].shelf->climb(searches[k].cursor, runs, offset, size, unit);
      agreed = offset == before ? agreed + 1 : 1;
    }
    return offset;
  }

 private:
  struct Level {
    std::int32_t width;  // of a bucket, in sections
    std::vector<Shelf> shelves;
  };

  std::vector<Level> levels_;
};

}  // namespace

void fill_gaps(const Blocks& blocks, std::span<const std::int32_t> order,
               std::int64_t capacity, std::span<std::int64_t> offsets) {
  const Sections sections =
      cut_into_sections(blocks.lower, blocks.upper, blocks.period);
  Occupancy taken(sections);
  const auto occupy = [&](std::int32_t i) {
    taken.add(Runs(sections, i), offsets[i], offsets[i] + blocks.size[i]);
  };
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] >= 0) occupy(static_cast<std::int32_t>(i));
  }
  for (const std::int32_t i : order) {
    const std::int64_t limit = capacity - blocks.size[i];
    if (limit < 0) continue;
    const std::int64_t unit = blocks.alignment.empty() ? 1 : blocks.alignment[i];
    const std::int64_t offset =
        taken.lowest_gap(Runs(sections, i), blocks.size[i], unit, limit);
    if (offset > limit) continue;
    offsets[i] = offset;
    occupy(i);
  }
}

}  // namespace memplan::dsa
