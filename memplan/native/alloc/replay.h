// Serves a program's requests at the offsets a plan gives them.
//
// Whatever the plan says, an address is handed out only if no live block overlaps
// it (promise 2): a plan may be wrong about a program, never about memory. For the
// same reason a plan can be exchanged for another while blocks are alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "alloc/arena.h"
#include "alloc/matcher.h"

namespace memplan {

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

// One step as it went: the step of the plan that was followed, and its counts.
struct StepCounts {
  std::size_t step;
  Counts counts;
};

class Replay {
 public:
  // Reserves `reserve` bytes of address space, of which the table's `arena_bytes` are
  // used; a later table may use more. Pages that no block used in the last `cold`
  // steps go back to the system; 0 keeps them.
  Replay(Table table, std::uint64_t reserve, std::uint32_t cold);

  // An address in the arena, or null: then the default allocator must serve.
  void* allocate(std::uint64_t bytes);
  // The rounded size of the block that was there.
  std::uint64_t release(void* pointer);
  // The program begins its next step. True at the first repeated one.
  bool next_step();
  // While this lasts, large blocks return their pages when they are freed, and it is
  // noted which they touched: slower, but no more is resident than what lives. For plans
  // that may yet change.
  void unsettle(bool unsettled);
  // From the next step on, or the end of the warm-up, go by another table: from its
  // first repeated step. Of several, the latest counts.
  void adopt(Table table);

  bool contains(const void* pointer) const { return arena_.contains(pointer); }
  std::uintptr_t base() const {
    return reinterpret_cast<std::uintptr_t>(arena_.address(0));
  }
  std::uint64_t reserved_bytes() const { return arena_.size(); }
  std::uint64_t arena_bytes();
  std::uint64_t top();
  std::uint64_t returned_bytes();
  std::size_t live_blocks();
  std::uint64_t live_bytes();
  // Of the warm-up steps, and of the repeated ones.
  Counts warmup_counts();
  Counts hot_counts();
  // The repeated steps that ended since the last call.
  std::vector<StepCounts> take_steps();
  // Per request of the table, the most bytes asked for in its place; of elastic steps.
  std::vector<std::uint64_t> largest();
  // Per request of the table, the part of its pages that the program touched before it
  // freed the block; -1 where that is not known: of small blocks, those alive, and those
  // that came while the plan was settled.
  std::vector<double> touched();
  // Around a fork: the child's copy is then of no other thread's half-done work, and
  // under no other thread's lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void* place_online(std::uint64_t bytes);
  void follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes);

  std::mutex mutex_;
  Matcher matcher_;
  Arena arena_;
  const std::uint32_t cold_;
  std::optional<Table> next_table_;
  std::uint64_t steps_ = 0;  // ended so far
  bool unsettled_ = false;
  bool returning_ = false;  // this step returns its pages as it frees them
  std::vector<double> touched_;
  // Large blocks whose pages are looked at, or returned, when they are freed: offset ->
  // request.
  std::unordered_map<std::uint64_t, std::size_t> followed_;
  Counts warmup_, hot_, step_;
  std::vector<StepCounts> ended_;
  std::uint64_t returned_ = 0;
};

}  // namespace memplan
