// What a program's tensors take up while a plan is served: in all, and outside the
// arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <unordered_map>

#include "replay/ranges.h"

namespace memplan {

class Replay;

struct TensorBytes {
  std::uint64_t live = 0;             // in the arena and outside it
  std::uint64_t most_live = 0;        // ever
  std::uint64_t outside = 0;          // not in the arena
  std::uint64_t outside_at_most = 0;  // when `most_live` was reached
};

// Counts bytes, and remembers the blocks that lie outside the arena, whose sizes their
// deleter is not told. Any thread, at any time.
class Ledger {
 public:
  // A block outside the arena: its bytes, and who had no place for it, if any.
  struct Outside {
    std::uint64_t bytes;
    Replay* refused_by;
  };
  void arena_block_born(std::uint64_t bytes) {
    std::lock_guard lock(mutex_);
    add(bytes);
  }
  void arena_block_died(std::uint64_t bytes) {
    std::lock_guard lock(mutex_);
    sums_.live -= bytes;
  }
  void outside_block_born(const void* pointer, std::uint64_t bytes, Replay* refused_by) {
    std::lock_guard lock(mutex_);
    blocks_[pointer] = {bytes, refused_by};
    known_.store(blocks_.size(), std::memory_order_relaxed);
    sums_.outside += bytes;
    add(bytes);
  }
  // All zero, and nothing happens, for one born before the ledger was opened.
  Outside outside_block_died(const void* pointer) {
    // While nothing is served there are none: whoever frees one saw it being born.
    if (known_.load(std::memory_order_relaxed) == 0) return {0, nullptr};
    std::lock_guard lock(mutex_);
    const auto block = blocks_.find(pointer);
    if (block == blocks_.end()) return {0, nullptr};
    const Outside outside = block->second;
    sums_.live -= outside.bytes;
    sums_.outside -= outside.bytes;
    blocks_.erase(block);
    known_.store(blocks_.size(), std::memory_order_relaxed);
    return outside;
  }
  // From now on the maxima are of what comes.
  void begin_maxima() {
    std::lock_guard lock(mutex_);
    sums_.most_live = sums_.live;
    sums_.outside_at_most = sums_.outside;
  }
  TensorBytes sums() {
    std::lock_guard lock(mutex_);
    return sums_;
  }
  // See Replay::lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void add(std::uint64_t bytes) {
    sums_.live += bytes;
    if (sums_.live <= sums_.most_live) return;
    sums_.most_live = sums_.live;
    sums_.outside_at_most = sums_.outside;
  }

  std::mutex mutex_;
  TensorBytes sums_;
  std::atomic<std::size_t> known_ = 0;  // blocks outside
  std::pmr::unsynchronized_pool_resource pool_{own_pages()};
  std::pmr::unordered_map<const void*, Outside> blocks_{&pool_};
};

}  // namespace memplan
