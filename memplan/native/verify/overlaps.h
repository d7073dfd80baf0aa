// Which rectangles of time and addresses overlap: what a plan is verified with.
//
// Shares no code with the solvers, so that a mistake of theirs is not made twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <vector>

namespace memplan::verify {

/// n pieces: half-open lifespans, and bytes [begin, end), which are not empty. A piece
/// with lower > upper is alive from the clock's start to upper, and again from lower.
struct Pieces {
  std::span<const std::int64_t> lower, upper, begin, end;
};

/// A newcomer that shares bytes with a piece alive since before, at a time: -1 for
/// those that are alive when the clock starts.
struct Clash {
  std::int64_t newcomer, there, time;
};

struct Event {
  std::int64_t time;
  std::int64_t what;  // a piece that is freed; or, plus their number, one that is born
  bool operator<(const Event& other) const {
    return time != other.time ? time < other.time : what < other.what;
  }
};

inline std::vector<Event> events_of(const Pieces& pieces) {
  const auto n = static_cast<std::int64_t>(pieces.lower.size());
  std::vector<Event> events;
  events.reserve(pieces.lower.size() * 2);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<std::size_t>(i);
    events.push_back({pieces.lower[k], n + i});
    events.push_back({pieces.upper[k], i});
    if (pieces.lower[k] > pieces.upper[k]) events.push_back({-1, n + i});
  }
  std::sort(events.begin(), events.end());
  return events;
}

/// Sweeps the clock once: at each tick the frees, then the allocations, by index. A
/// newcomer that touches pieces that are there clashes with each of them, and is kept
/// out. Hence what is there is disjoint, and a newcomer can only touch its neighbours.
/// Empty if and only if no two pieces overlap.
inline std::vector<Clash> overlaps(const Pieces& pieces) {
  const auto n = static_cast<std::int64_t>(pieces.lower.size());
  std::vector<Clash> clashes;
  std::map<std::int64_t, std::int64_t> there;  // by first byte; the ranges are disjoint
  std::vector<bool> kept(pieces.lower.size());
  for (const Event& event : events_of(pieces)) {
    const std::int64_t piece = event.what < n ? event.what : event.what - n;
    const auto k = static_cast<std::size_t>(piece);
    const std::int64_t begin = pieces.begin[k], end = pieces.end[k];
    if (event.what < n) {
      if (kept[k]) there.erase(begin);
      kept[k] = false;
      continue;
    }
    const auto above = there.lower_bound(begin);
    auto at = above;
    if (at != there.begin()) {
      const auto below = std::prev(at);
      if (pieces.end[static_cast<std::size_t>(below->second)] > begin) at = below;
    }
    const std::size_t before = clashes.size();
    for (; at != there.end() && at->first < end; ++at) {
      clashes.push_back({piece, at->second, event.time});
    }
    if (clashes.size() == before) {
      there.emplace_hint(above, begin, piece);
      kept[k] = true;
    }
  }
  return clashes;
}

}  // namespace memplan::verify
