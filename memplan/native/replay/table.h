// A plan as the server of requests goes by it: requests with their offsets, in steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace memplan {

struct Request {
  std::uint64_t size;   // exact bytes; in an elastic step, the most that were asked for
  std::int64_t offset;  // -1: the default allocator serves it, as planned
  bool sparse = false;  // touched in part: its pages go back when it is freed
  bool brief = false;   // freed soon; see Table::by_lifespan
};

// Requests [first, last) of the table. In an elastic step they are told by their
// position, and may be smaller than planned (profile-guided memory optimization,
// section 4.3); in any other by their exact size, in nearly the order planned.
struct Step {
  std::size_t first;
  std::size_t last;
  bool elastic;
};

// Steps [0, loop_begin) are the warm-up, [loop_begin, loop_end) repeat, and the others
// are of other kinds. No steps at all: every request is a departure.
struct Table {
  std::vector<Request> requests;
  std::vector<Step> steps;
  std::size_t loop_begin = 0;
  std::size_t loop_end = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t online_bytes = 0;  // departures are placed below this
  // No marks tell where a step begins: the requests themselves do. There is no warm-up
  // then, and requests between one pass of the loop and the next are none of the plan's.
  bool unmarked = false;
  // Requests lie by how long they live, not at their offsets (which only say that they
  // are planned): brief ones at the high end of a hole, others at the low one. Offsets
  // for the largest sizes of many steps would need more than any one of those steps, and
  // those of one kind of step lie in the way of what another leaves behind.
  // Elastic steps may be of any sizes then, and of a few requests more or fewer: whether
  // one is brief is a guess, by its position, that costs no more than room if it is wrong.
  bool by_lifespan = false;
  // What comes before a step's first request lies between steps, and is none of the plan's:
  // copies of weights have the sizes of gradients, and stay.
  bool between = false;
};

// What a table is made of: plain arrays, as both interfaces are given them.
struct TableArrays {
  std::span<const std::int64_t> sizes;    // per request, bytes; positive
  std::span<const std::int64_t> offsets;  // per request, bytes; -1: not planned
  std::span<const bool> sparse;           // per request; empty: none of them
  std::span<const bool> brief = {};       // per request; empty: all lie at their offsets
  std::span<const std::int64_t> starts;   // per step, its first request; ascending
  std::span<const bool> elastic;          // per step
  std::size_t loop_begin;
  std::size_t loop_end;
  std::uint64_t arena_bytes;
  std::uint64_t online_bytes;
  bool unmarked = false;
  bool between = false;
};

// Offsets must be multiples of `granularity`; sizes are rounded up to multiples of
// `size_unit`, 1 where they are matched as they are. Throws std::invalid_argument for
// what would lead the matcher astray.
Table table_of(const TableArrays& arrays, std::uint64_t granularity,
               std::uint64_t size_unit = 1);

}  // namespace memplan
