// What an allocator did on one device, in bytes and counts; what became of its requests,
// PhaseCounts tells.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace memplan::cuda {

enum Stat : std::size_t {
  kAllocated,      // bytes of blocks that were not freed yet, rounded
  kAllocatedPeak,
  kActive,         // the same, and those whose memory a stream may still be using
  kActivePeak,
  kReserved,       // bytes taken from CUDA: arenas, other blocks, the cache
  kReservedPeak,
  kArenas,         // bytes of the arenas
  kCached,         // bytes of freed blocks kept outside the arenas
  kOtherStream,    // requests on a stream without an arena
  kFrees,
  kUnknownFrees,   // of addresses that were never handed out
  kPending,        // blocks freed that wait for another stream
  kEventFailures,  // event calls that failed; the block waited longer
  kMallocFailures,
  kRetries,        // requests served after memory was released for them
  kOutOfMemory,    // requests that failed
  kRefusedCaptures,
  kStranded,       // blocks that CUDA would not take back
  kStatCount,
};

constexpr const char* kStatNames =
    "allocated_bytes,allocated_bytes_peak,active_bytes,active_bytes_peak,"
    "reserved_bytes,reserved_bytes_peak,arena_bytes,cached_bytes,"
    "other_stream,frees,unknown_frees,pending_blocks,event_failures,malloc_failures,"
    "retries,out_of_memory,refused_captures,stranded_blocks";

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
