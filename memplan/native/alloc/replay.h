// Serves a program's requests at the offsets a plan gives them.
//
// The plan is a list of steps, each a sequence of requests; the first ones are the
// program's warm-up, and from `loop_start` on they repeat. A request is matched to
// an entry of exactly its size, among the next few that have not been asked for.
// Whatever the plan says, an address is handed out only if no live block overlaps
// it (promise 2): a plan may be wrong about a program, never about memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "alloc/arena.h"

namespace memplan {

struct Request {
  std::uint64_t size;    // exact bytes
  std::int64_t offset;   // -1: the default allocator serves it, as planned
};

struct Counts {
  std::uint64_t requests = 0;
  std::uint64_t planned = 0;    // at the planned offset
  std::uint64_t unplanned = 0;  // left to the default allocator, as planned
  std::uint64_t conflicts = 0;  // the planned range was taken
  std::uint64_t online = 0;     // departures, placed in the arena's free space
  std::uint64_t fallback = 0;   // departures, served by the default allocator
  std::uint64_t online_bytes = 0;
  std::uint64_t fallback_bytes = 0;
};

class Replay {
 public:
  // `starts` holds the index of each step's first request, ascending, the first 0;
  // steps from `loop_start` on repeat for ever.
  Replay(std::vector<Request> requests, std::vector<std::size_t> starts,
         std::size_t loop_start, std::uint64_t arena_bytes);

  // An address in the arena, or null: then the default allocator must serve.
  void* allocate(std::uint64_t bytes);
  void release(void* pointer);
  // The program begins its next step. True at the first repeated one.
  bool next_step();

  bool contains(const void* pointer) const { return arena_.contains(pointer); }
  std::uintptr_t base() const {
    return reinterpret_cast<std::uintptr_t>(arena_.address(0));
  }
  std::uint64_t arena_bytes() const { return arena_.size(); }
  std::size_t live_blocks();
  std::uint64_t live_bytes();
  // Of the warm-up steps, and of the repeated ones.
  Counts warmup_counts();
  Counts hot_counts();
  // A forked child has other threads, or none: it must not wait for a lock that one
  // of its parent's holds.
  void forget_lock();

 private:
  void enter(std::size_t step);
  std::size_t match(std::uint64_t bytes);

  const std::vector<Request> requests_;
  std::vector<std::size_t> starts_;  // with the end of the last step appended
  const std::size_t loop_start_;
  Arena arena_;
  std::mutex mutex_;
  std::size_t step_ = 0;
  std::size_t cursor_ = 0;  // no unused entry of the step lies below it
  std::size_t reach_ = 0;   // one past the last entry matched
  std::vector<bool> used_;
  bool looped_ = false;
  Counts warmup_, hot_;
};

}  // namespace memplan
