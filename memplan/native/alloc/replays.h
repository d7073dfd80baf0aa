// The arenas of all plans so far, and which of them a block lies in.
//
// Those of earlier plans stay: their blocks may still be alive.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "alloc/replay.h"

namespace memplan {

class Replays {
 public:
  // Whether so many more may be added.
  bool has_room(std::size_t count) const { return count <= kMost - count_.load(); }
  // There must be room; one thread at a time. Blocks in these are known from now on.
  void add(const std::vector<Replay*>& replays) {
    std::size_t count = count_.load();
    for (Replay* replay : replays) replays_[count++].store(replay);
    count_.store(count, std::memory_order_release);
  }
  // The one whose arena the block lies in, or null. By any thread, without a lock.
  Replay* owner(const void* pointer) const {
    for (std::size_t i = count_.load(std::memory_order_acquire); i-- > 0;) {
      Replay* replay = replays_[i].load(std::memory_order_relaxed);
      if (replay->contains(pointer)) return replay;
    }
    return nullptr;
  }
  // All that there are, in the order added, and back again: around a fork.
  void lock() {
    locked_ = count_.load();
    for (std::size_t i = 0; i < locked_; ++i) replays_[i].load()->lock();
  }
  void unlock() {
    for (std::size_t i = locked_; i-- > 0;) replays_[i].load()->unlock();
  }

 private:
  static constexpr std::size_t kMost = 256;
  std::array<std::atomic<Replay*>, kMost> replays_ = {};
  std::atomic<std::size_t> count_ = 0;
  std::size_t locked_ = 0;
};

}  // namespace memplan
