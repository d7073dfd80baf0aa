// What glibc keeps of the memory that programs ask for beside their tensors.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/replay.h"

namespace memplan {

// Any thread, at any time.
class Scratch {
 public:
  // With the tensors in the arena, glibc serves the operators' scratch: some MiB that it
  // would hand back and fault in again in every step. Has it keep them where `replay`
  // pays; not before, as glibc with all tensors keeps more than by its own thresholds,
  // which are gone then. Where the plan was given up later, has it keep about what its
  // own would have been by then.
  void look_after(Replay& replay);
  // Free pages go back to the system.
  static void hand_back();

 private:
  static constexpr std::uint64_t kOwn = 0;
  // Bytes from which on blocks are mapped one by one; glibc's own until it is set.
  std::atomic<std::uint64_t> mapped_ = kOwn;
};

}  // namespace memplan
