// What became of one device's arenas, in bytes and counts; what became of its requests,
// PhaseCounts tells.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace memplan::cuda {

enum Stat : std::size_t {
  kArenas,          // bytes of the arenas that are there now
  kArenasPeak,
  kInUse,           // bytes of blocks in them: alive, or waited for
  kInUsePeak,
  kArenasMade,      // times that one came to be there
  kArenasRefused,   // times that torch had no memory for one
  kArenasDeferred,  // times that one was not made: torch kept as much memory free
  kArenasGivenBack, // times that an unused one was given back
  kOtherStream,     // requests on a stream without an arena
  kInPools,         // requests under capture or in a memory pool, left to torch
  kInterrupted,     // requests between interrupt and resume
  kPending,         // blocks freed that wait for another stream
  kEventFailures,   // event calls that failed; the block waited longer
  kLastResort,      // requests that torch had no memory for, placed in an arena
  kOutOfMemory,     // requests that failed
  kStranded,        // blocks lost to planning, for want of memory for our own books
  kStatCount,
};

constexpr const char* kStatNames =
    "arena_bytes,arena_bytes_peak,in_use_bytes,in_use_bytes_peak,arenas_made,"
    "arenas_refused,arenas_deferred,arenas_given_back,other_stream,in_pools,interrupted,pending_blocks,"
    "event_failures,last_resort,out_of_memory,stranded_blocks";

class Stats {
 public:
  std::uint64_t& operator[](Stat stat) { return values_[stat]; }
  std::uint64_t operator[](std::size_t stat) const { return values_[stat]; }

  // Adds to a level, and moves its peak, which comes right after it.
  void grow(Stat level, std::uint64_t bytes) {
    values_[level] += bytes;
    if (values_[level] > values_[level + 1]) values_[level + 1] = values_[level];
  }
  void shrink(Stat level, std::uint64_t bytes) { values_[level] -= bytes; }

 private:
  std::array<std::uint64_t, kStatCount> values_ = {};
};

}  // namespace memplan::cuda
