// The server of requests: says where in an arena each is to lie, or that the default
// allocator must serve it; and counts.
//
// Whatever the plan says, a range is given out only if none in use overlaps it (promise
// 2): a plan may be wrong about a program, never about memory. For the same reason
// another plan can take over while blocks are alive. Not thread-safe: the owner holds a
// lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "replay/ranges.h"
#include "replay/steps.h"

namespace memplan {

// What became of a program's requests.
struct Counts {
  std::uint64_t requests = 0;
  std::uint64_t planned = 0;  // at the planned offset
  std::uint64_t unplanned = 0;  // left to the default allocator, as planned
  std::uint64_t conflicts = 0;  // the planned range was taken
  std::uint64_t online = 0;  // departures, placed in the arena's free space
  std::uint64_t fallback = 0;  // departures, served by the default allocator
  std::uint64_t online_bytes = 0;
  std::uint64_t fallback_bytes = 0;
};

// Each counter with its name, in the order in which they are reported.
constexpr std::array<std::pair<const char*, std::uint64_t Counts::*>, 8> kCounters = {{
    {"requests", &Counts::requests},
    {"planned", &Counts::planned},
    {"unplanned", &Counts::unplanned},
    {"conflicts", &Counts::conflicts},
    {"online", &Counts::online},
    {"fallback", &Counts::fallback},
    {"online_bytes", &Counts::online_bytes},
    {"fallback_bytes", &Counts::fallback_bytes},
}};

inline Counts& operator+=(Counts& sum, const Counts& one) {
  for (const auto& [name, counter] : kCounters) sum.*counter += one.*counter;
  return sum;
}

// Of the warm-up steps, and of all others.
struct PhaseCounts {
  Counts warmup;
  Counts hot;

  Counts& of(bool looped) { return looped ? hot : warmup; }
};

inline PhaseCounts& operator+=(PhaseCounts& sum, const PhaseCounts& one) {
  sum.warmup += one.warmup;
  sum.hot += one.hot;
  return sum;
}

// Where a request is to lie.
struct Place {
  std::int64_t offset;  // -1: the default allocator serves it
  std::size_t entry;  // the table's request that lies where planned, or kNoMatch
};

// A request of which the server only takes note: its planned place, and the evidence
// against the plan.
struct Followed {
  std::int64_t offset;  // -1: it has none
  std::uint64_t planned;  // bytes of that place
  std::uint64_t
      departed;  // bytes: its own, if the plan expected one with a place; or of
  // those that it expected before this one
  bool brief = false;  // see Table::by_lifespan
};

// How a step went.
struct StepEnd {
  std::size_t step;  // of the plan: the one that was followed
  Counts counts;
  bool hot;  // not one of the warm-up
  bool adopted;  // another table holds from its end on
  bool outgrown;  // it was elastic, and a request was larger than planned
  std::uint64_t followed = 0;  // requests of the fallback that the plan has a place for
};

// Where the blocks of a plan lie in the arena: at the planned offsets, or by lifespan (see
// Table::by_lifespan).
class Placement {
 public:
  virtual ~Placement() = default;
  // Takes the place of a planned request, for `bytes`. Returns its offset, or -1 if it is
  // in use.
  virtual std::int64_t take(Ranges& ranges, const Table& table, const Request& request,
                            std::uint64_t bytes) const = 0;
  // Whether a request that departs from the plan may lie in the arena, in the loop or
  // before it.
  virtual bool admits_departures(bool looped) const = 0;
  // Bytes of the departures among `counts`.
  virtual std::uint64_t departed_bytes(const Counts& counts) const = 0;
  // Planned bytes that the program skipped when it asked for request `entry`, not `next`.
  virtual std::uint64_t skipped_bytes(const Table& table, std::size_t next,
                                      std::size_t entry) const = 0;

  // The one that the table needs. It lives for ever.
  static const Placement& of(const Table& table);
};

class AtOffsets final : public Placement {
 public:
  std::int64_t take(Ranges& ranges, const Table&, const Request& request,
                    std::uint64_t bytes) const override {
    const auto offset = static_cast<std::uint64_t>(request.offset);
    return ranges.take(offset, bytes) ? request.offset : -1;
  }
  // In the warm-up a departure may be there to stay, and would be in the way of every
  // step to come.
  bool admits_departures(bool looped) const override { return looped; }
  std::uint64_t departed_bytes(const Counts& counts) const override {
    return counts.online_bytes + counts.fallback_bytes;
  }
  std::uint64_t skipped_bytes(const Table& table, std::size_t next,
                              std::size_t entry) const override {
    if (entry - next >= kNearby) return 0;
    std::uint64_t skipped = 0;
    for (std::size_t i = next; i < entry; ++i) {
      if (table.requests[i].offset >= 0) skipped += table.requests[i].size;
    }
    return skipped;
  }

 private:
  static constexpr std::size_t kNearby = 64;  // entries; beyond, it is another step's
};

class ByLifespan final : public Placement {
 public:
  std::int64_t take(Ranges& ranges, const Table& table, const Request& request,
                    std::uint64_t bytes) const override {
    return ranges.take_anywhere(bytes, table.arena_bytes, request.brief);
  }
  // What stays was recognised by its size.
  bool admits_departures(bool) const override { return true; }
  std::uint64_t departed_bytes(const Counts& counts) const override {
    return counts.fallback_bytes;
  }
  // A step of the warm-up may be of other sizes, some of which come later.
  std::uint64_t skipped_bytes(const Table&, std::size_t, std::size_t) const override {
    return 0;
  }
};

inline const Placement& Placement::of(const Table& table) {
  static const AtOffsets* const at_offsets = new AtOffsets;
  static const ByLifespan* const by_lifespan = new ByLifespan;
  if (table.by_lifespan) return *by_lifespan;
  return *at_offsets;
}

class Server {
 public:
  // An arena of `bytes`, of which the table's `arena_bytes` are used; a later table may
  // use more. For `granularity` see Ranges.
  Server(Table table, std::uint64_t bytes, std::uint64_t granularity)
      : steps_(std::move(table)),
        placement_(&Placement::of(steps_.table())),
        ranges_(bytes, granularity) {
    if (!this->table().between) return;
    for (const Request& request : this->table().requests) {
      if (request.offset < 0) kept_.push_back(request.size);
    }
    std::sort(kept_.begin(), kept_.end());
  }

  // `bytes` are asked for, and taken where the answer says. outside: in the loop, a request
  // that departs from the plan may go to the default allocator; in the arena, one that
  // stays would be in the way of every step to come.
  Place serve(std::uint64_t bytes, bool outside = false) {
    ++step_.requests;
    followed_last_ = false;
    const std::size_t entry = steps_.match(bytes);
    if (entry != kNoMatch) {
      const Request& request = table().requests[entry];
      if (request.offset < 0) {
        ++step_.unplanned;
        return {-1, kNoMatch};
      }
      const std::int64_t place = placement_->take(ranges_, table(), request, bytes);
      if (place >= 0) {
        ++step_.planned;
        return {place, entry};
      }
      ++step_.conflicts;
    }
    const bool conflict = entry != kNoMatch;
    const bool copy = !conflict && is_copy(bytes);
    if (looped() && (copy || outside)) {
      copies_ += copy;
      return {depart(bytes, -1), kNoMatch};
    }
    const bool placed = departures_placed_ && placement_->admits_departures(looped());
    return {depart(bytes, placed ? take_online(bytes, conflict) : -1), kNoMatch};
  }
  // While there is no memory for an arena, or it is to get empty: the default allocator
  // serves the request, and the server only follows the plan.
  Followed follow(std::uint64_t bytes) {
    ++step_.requests;
    followed_last_ = false;
    const std::size_t next = steps_.policy().next();
    const std::size_t entry = steps_.match(bytes);
    const std::vector<Request>& requests = table().requests;
    if (entry == kNoMatch) {
      depart(bytes, -1);
      const bool expected = next >= requests.size() || requests[next].offset >= 0;
      // It may have a weight's size by chance, and be as planned but for that.
      return {-1, 0, expected && !steps_.policy().keeps(bytes) ? bytes : 0};
    }
    const Request& request = requests[entry];
    if (request.offset < 0) {
      ++step_.unplanned;
    } else {
      depart(bytes, -1);
      ++followed_;
      followed_last_ = true;
    }
    return {request.offset, request.size,
            placement_->skipped_bytes(table(), next, entry), request.brief};
  }
  // The arena has memory now, and the request followed last goes to its planned place:
  // returns that, or -1 if it is taken.
  std::int64_t place_followed(std::int64_t offset, std::uint64_t bytes, bool brief) {
    const Request request = {.size = bytes, .offset = offset, .brief = brief};
    const std::int64_t place = placement_->take(ranges_, table(), request, bytes);
    // Unless its step has ended meanwhile, it was counted as one that was only followed.
    if (place < 0 || followed_ == 0 || step_.fallback_bytes < bytes) return place;
    --followed_;
    --step_.fallback;
    step_.fallback_bytes -= bytes;
    ++step_.planned;
    return place;
  }
  // Bytes of this step's departures so far; by lifespan, of those outside the arena.
  std::uint64_t departed_bytes() const { return placement_->departed_bytes(step_); }
  // The default allocator serves the request, without a look at the plan.
  void pass(std::uint64_t bytes) {
    ++step_.requests;
    followed_last_ = false;
    depart(bytes, -1);
  }
  // Another allocator serves the request, though it may be one of the plan's. The server
  // only follows the plan, to recognise the requests after it.
  void pass_by(std::uint64_t bytes) { steps_.match(bytes); }
  // Without a look at the plan, but in the arena's free space if it fits: returns the
  // offset, or -1.
  std::int64_t serve_anywhere(std::uint64_t bytes) {
    ++step_.requests;
    followed_last_ = false;
    return depart(bytes, ranges_.take_anywhere(bytes, ranges_.size()));
  }
  // The latest request, a departure that was to go to the default allocator, goes into the
  // arena's free space after all: returns the offset, or -1 if it does not fit.
  std::int64_t bring_in(std::uint64_t bytes) {
    const std::int64_t offset = ranges_.take_anywhere(bytes, ranges_.size());
    if (offset < 0) return -1;
    --step_.fallback;
    step_.fallback_bytes -= bytes;
    if (std::exchange(followed_last_, false)) --followed_;
    return depart(bytes, offset);
  }
  // Whether requests that depart from the plan go into the arena's free space, as they do
  // at first, or to the default allocator.
  void place_departures(bool placed) { departures_placed_ = placed; }
  bool places_departures() const { return departures_placed_; }
  // Whether a step of the warm-up has made far more requests than the whole plan, so that
  // there is no point in waiting for its end.
  bool overdue() const {
    return steps_.warming_up() &&
           step_.requests > kOverdue + 2 * table().requests.size();
  }
  // See Steps.
  bool turns(std::uint64_t bytes) {
    const bool before = looped();
    const bool turned = steps_.turns(bytes);
    // The requests made in the loop count there, though the loop is over.
    if (before && !looped()) ended_.hot += std::exchange(step_, {});
    return turned;
  }
  // The program begins its next step; how the last one went.
  StepEnd next_step() {
    StepEnd end = {
        steps_.step(), std::exchange(step_, {}),   looped(),
        false,         steps_.policy().outgrown(), std::exchange(followed_, 0)};
    ended_.of(end.hot) += end.counts;
    const std::uint64_t departed = end.counts.online + end.counts.fallback;
    as_planned_ = end.counts.planned > 0 && departed == std::exchange(copies_, 0);
    steps_.next_step();
    // The warm-up goes by its own table to the end.
    if (next_table_ && looped()) {
      steps_.adopt(std::move(*next_table_));
      placement_ = &Placement::of(table());
      next_table_.reset();
      end.adopted = true;
    }
    return end;
  }
  // From the next step on, or the end of the warm-up, go by another table, from its first
  // repeated step. Of several, the latest counts.
  void adopt(Table table) { next_table_ = std::move(table); }

  const Table& table() const { return steps_.table(); }
  // See Steps and Policy.
  bool looped() const { return steps_.looped(); }
  bool warming_up() const { return steps_.warming_up(); }
  bool in_order() const { return steps_.policy().in_order(); }
  std::vector<std::uint64_t> largest() const { return steps_.largest(); }
  // All so far, this step's included.
  PhaseCounts counts() const {
    PhaseCounts sum = ended_;
    sum.of(looped()) += step_;
    return sum;
  }
  // For what is freed, and for what is taken against the plan.
  Ranges& ranges() { return ranges_; }
  const Ranges& ranges() const { return ranges_; }

 private:
  static constexpr std::uint64_t kOverdue = 1024;

  // Free space for a departure. Where there is more than the plan's: what the plan did not
  // expect goes among the plan's blocks, whose pages are resident. What it did expect,
  // and found its place taken, goes beyond them, not to take another's place in turn.
  std::int64_t take_online(std::uint64_t bytes, bool conflict) {
    const std::uint64_t planned = table().arena_bytes, all = table().online_bytes;
    std::int64_t offset = -1;
    if (all > planned) {
      offset = conflict ? ranges_.take_above(bytes, planned)
                        : ranges_.take_anywhere(bytes, planned);
    }
    return offset >= 0 ? offset : ranges_.take_anywhere(bytes, all);
  }
  // Whether it is likely to stay: after a step that went as planned, and before the next
  // one has begun, it has the size of something that does.
  bool is_copy(std::uint64_t bytes) const {
    return table().between && as_planned_ && steps_.at_start() &&
           std::binary_search(kept_.begin(), kept_.end(), bytes);
  }
  // Counts a request that lies at `offset` against the plan, or, if -1, elsewhere.
  std::int64_t depart(std::uint64_t bytes, std::int64_t offset) {
    ++(offset < 0 ? step_.fallback : step_.online);
    (offset < 0 ? step_.fallback_bytes : step_.online_bytes) += bytes;
    return offset;
  }

  Steps steps_;
  const Placement* placement_;
  Ranges ranges_;
  std::optional<Table> next_table_;
  bool departures_placed_ = true;
  bool as_planned_ = false;  // the last step was, but for copies of weights
  std::uint64_t copies_ = 0;  // in this step
  std::vector<std::uint64_t> kept_;  // sizes of what stays outside the arena; ascending
  PhaseCounts ended_;
  Counts step_;
  std::uint64_t followed_ = 0;  // in this step
  bool followed_last_ = false;  // the latest request was
};

}  // namespace memplan
