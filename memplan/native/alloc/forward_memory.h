// Which request of a forward pass made a node of autograd's, by sequence numbers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace memplan {

// Of the nodes that one thread made last: it alone remembers, any thread may ask. A node's
// successor is the number that the request saw which was made next.
class ForwardMemory {
 public:
  // The stack of the request that first saw a number.
  void remember(std::uint64_t sequence, std::int32_t stack) {
    std::atomic<std::uint64_t>& slot = slots_[sequence % kSlots];
    if (turn_of(slot.load(std::memory_order_relaxed)) == turn(sequence)) return;
    const auto kept = static_cast<std::uint32_t>(stack);
    slot.store((turn(sequence) << 32) | kept, std::memory_order_release);
  }
  // The stack of the request that made the node of this number, or of the next one; -1 if
  // that is not known (any more).
  std::int32_t stack_of(std::uint64_t sequence) const {
    if (sequence > std::numeric_limits<std::uint64_t>::max() - kReach) return -1;
    for (std::uint64_t next = sequence + 1; next <= sequence + kReach; ++next) {
      const std::uint64_t slot = slots_[next % kSlots].load(std::memory_order_acquire);
      if (turn_of(slot) == turn(next)) return static_cast<std::int32_t>(slot);
    }
    return -1;
  }

 private:
  static constexpr std::size_t kSlots = 1 << 16;  // a power of two
  static constexpr std::uint64_t kReach = 256;    // nodes that ask for nothing lie between
  // What tells numbers of one slot apart: which round they are from; 0 is none. In 32 bits,
  // as a thread never makes 2^48 nodes.
  static std::uint64_t turn(std::uint64_t sequence) {
    return (sequence / kSlots + 1) & 0xFFFFFFFFu;
  }
  static std::uint64_t turn_of(std::uint64_t slot) { return slot >> 32; }

  std::vector<std::atomic<std::uint64_t>> slots_ =
      std::vector<std::atomic<std::uint64_t>>(kSlots);
};

}  // namespace memplan
