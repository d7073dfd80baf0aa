// The server of requests: says where in an arena each is to lie, or that the default
// allocator must serve it; and counts.
//
// Whatever the plan says, a range is given out only if none in use overlaps it (promise
// 2): a plan may be wrong about a program, never about memory. For the same reason a
// plan can be exchanged for another while blocks are alive. Not thread-safe: the owner
// holds a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "replay/counts.h"
#include "replay/matcher.h"
#include "replay/ranges.h"

namespace memplan {

// Where a request is to lie.
struct Place {
  std::int64_t offset;  // -1: the default allocator serves it
  std::size_t entry;    // the table's request that lies where planned, or kNoMatch
};

// Of a request that is only followed: its planned place, and what tells against the plan.
struct Followed {
  std::int64_t offset;     // -1: it has none
  std::uint64_t planned;   // bytes of that place
  std::uint64_t departed;  // bytes: its own, if the plan expected one with a place; or of
                           // those that it expected before it
  bool brief = false;      // see Table::by_lifespan
};

// How a step went.
struct StepEnd {
  std::size_t step;  // of the plan: the one that was followed
  Counts counts;
  bool hot;      // not one of the warm-up
  bool adopted;  // from its end on, another table holds
  bool outgrown;  // it was an elastic one, and asked for more than planned
  std::uint64_t followed = 0;  // requests of the fallback that the plan has a place for
};

class Server {
 public:
  // An arena of `bytes`, of which the table's `arena_bytes` are used; a later table may
  // use more. For `granularity` see Ranges.
  Server(Table table, std::uint64_t bytes, std::uint64_t granularity);

  // `bytes` are asked for, and taken where the answer says.
  Place serve(std::uint64_t bytes);
  // While there is no memory for an arena: the default allocator serves the request, but
  // the plan is followed.
  Followed follow(std::uint64_t bytes);
  // The arena is there now, and the request followed last goes to its planned place:
  // returns that, or -1 if it is taken.
  std::int64_t place_followed(std::int64_t offset, std::uint64_t bytes, bool brief);
  // Bytes of this step's departures so far; by lifespan, one in the arena is none.
  std::uint64_t departed_bytes() const {
    return (table().by_lifespan ? 0 : step_.online_bytes) + step_.fallback_bytes;
  }
  // A request that is the default allocator's without a look at the plan.
  void pass(std::uint64_t bytes) {
    ++step_.requests;
    depart(bytes, -1);
  }
  // One of the plan's, perhaps, that is another allocator's whatever the plan says: it is
  // only taken note of, so that those after it are told apart.
  void pass_by(std::uint64_t bytes) { matcher_.match(bytes); }
  // Without a look at the plan, but in the arena's free space where that holds it:
  // returns the offset, or -1.
  std::int64_t serve_anywhere(std::uint64_t bytes) {
    ++step_.requests;
    return depart(bytes, ranges_.take_anywhere(bytes, ranges_.size()));
  }
  // Whether requests that depart from the plan are placed in the arena's free space; they
  // are at first. Else the default allocator serves them.
  void place_departures(bool placed) { departures_placed_ = placed; }
  bool places_departures() const { return departures_placed_; }
  // Whether a step of the warm-up has asked for far more than the whole plan does: its
  // end is not to be waited for.
  bool overdue() const {
    return !matcher_.looped() && !table().unmarked &&
           step_.requests > kOverdue + 2 * table().requests.size();
  }
  // See Matcher::turns.
  bool turns(std::uint64_t bytes);
  // The program begins its next step; how the last one went.
  StepEnd next_step();
  // From the next step on, or the end of the warm-up, go by another table: from its
  // first repeated step. Of several, the latest counts.
  void adopt(Table table) { next_table_ = std::move(table); }

  const Table& table() const { return matcher_.table(); }
  const Matcher& matcher() const { return matcher_; }
  // All so far, this step's included.
  PhaseCounts counts() const;
  // For what is given back, and for what is taken against the plan.
  Ranges& ranges() { return ranges_; }
  const Ranges& ranges() const { return ranges_; }

 private:
  static constexpr std::uint64_t kOverdue = 1024;
  static constexpr std::size_t kNearby = 64;  // entries; beyond, it is another step's

  // Where a request of the plan's is to lie, taken for `bytes`; -1: another is there.
  std::int64_t take_planned(const Request& request, std::uint64_t bytes);
  // Free space for a departure. Where there is more than the plan's: what it did not
  // expect comes to lie among the plan's blocks, whose pages are resident; what it did,
  // and found its place taken, beyond them, not to take another's place in turn.
  std::int64_t take_online(std::uint64_t bytes, bool conflict);
  // Counts a request that lies at `offset` against the plan, or, if -1, elsewhere.
  std::int64_t depart(std::uint64_t bytes, std::int64_t offset) {
    ++(offset < 0 ? step_.fallback : step_.online);
    (offset < 0 ? step_.fallback_bytes : step_.online_bytes) += bytes;
    return offset;
  }

  Matcher matcher_;
  Ranges ranges_;
  std::optional<Table> next_table_;
  bool departures_placed_ = true;
  PhaseCounts ended_;
  Counts step_;
  std::uint64_t followed_ = 0;  // in this step
};

}  // namespace memplan
