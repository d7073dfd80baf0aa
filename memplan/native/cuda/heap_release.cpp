// The ways memory comes back: frees, waiting for other streams, the cache.
#include <utility>

#include "cuda/heap.h"

namespace memplan::cuda {

bool Heap::release(void* address) noexcept {
  try {
    Lock lock(mutex_);
    const auto found = blocks_.find(address);
    if (found == blocks_.end() || found->second.freed) return false;
    Block& block = found->second;
    block.freed = true;
    ++stats_[kFrees];
    stats_.shrink(kAllocated, block.size);
    if (block.users.empty()) {
      finish(address);
    } else {
      DeviceGuard guard(runtime_, device_);
      waiting_.add(address, std::move(block.users), pools_ == 0);
    }
    if (cache_.bytes() > cache_limit_ && !capturing()) {
      give_back(cache_.evict(cache_limit_), lock);
    }
  } catch (...) {
    // No memory for our own books: the block stays as it is, and nobody gets it.
    ++stats_[kStranded];
  }
  return true;
}

// Whether a capture seems to be under way somewhere: then nothing is waited for. Asked
// of the default stream, CUDA tells of other streams' captures by an error.
bool Heap::capturing() {
  if (pools_ > 0) return true;
  int status = 0;
  if (runtime_.is_capturing(nullptr, &status) == kSuccess) return status != 0;
  runtime_.last_error();
  return true;
}

// Blocks whose streams are done with them are free from now on.
void Heap::collect() {
  if (pools_ > 0 || waiting_.blocks() == 0) return;
  DeviceGuard guard(runtime_, device_);
  for (void* address : waiting_.collect()) finish(address);
}

void Heap::finish(void* address) {
  const auto found = blocks_.find(address);
  const Block& block = found->second;
  if (block.arena != nullptr) {
    const auto offset = static_cast<char*>(address) - block.arena->base;
    block.arena->server.ranges().give_back(static_cast<std::uint64_t>(offset));
  } else {
    cache_.put({address, block.size, block.stream});
    stats_[kCached] += block.size;
  }
  stats_.shrink(kActive, block.size);
  blocks_.erase(found);
}

// Waits until other streams are done with the blocks freed so far.
void Heap::drain(Lock& lock) {
  collect();
  if (pools_ > 0 || waiting_.blocks() == 0) return;
  const std::vector<Event> events = waiting_.newest();
  const std::vector<Waiting::Lacking> lacking = waiting_.lacking();
  lock.unlock();
  bool idle = false;
  {
    DeviceGuard guard(runtime_, device_);
    for (const Event event : events) {
      if (runtime_.event_synchronize(event) != kSuccess) runtime_.last_error();
    }
    if (!lacking.empty()) {
      idle = runtime_.device_synchronize() == kSuccess;
      if (!idle) runtime_.last_error();
    }
  }
  lock.lock();
  if (idle) {
    for (void* address : waiting_.settle(lacking)) finish(address);
  }
  collect();
}

// Gives blocks back to CUDA; `lock` is held again at the end.
void Heap::give_back(const std::vector<RawBlock>& blocks, Lock& lock) {
  if (blocks.empty()) return;
  for (const RawBlock& block : blocks) stats_.shrink(kCached, block.size);
  lock.unlock();
  std::uint64_t given = 0, kept = 0;
  bool idle = false;
  {
    DeviceGuard guard(runtime_, device_);
    // Their own streams may have work queued that uses them still.
    idle = runtime_.device_synchronize() == kSuccess;
    if (!idle) runtime_.last_error();
    for (const RawBlock& block : blocks) {
      if (!idle) break;
      if (runtime_.free(block.address) == kSuccess) {
        given += block.size;
      } else {
        runtime_.last_error();
        ++kept;
      }
    }
  }
  lock.lock();
  stats_.shrink(kReserved, given);
  stats_[kStranded] += kept;
  if (idle) return;
  for (const RawBlock& block : blocks) {
    cache_.put(block);
    stats_[kCached] += block.size;
  }
}

void Heap::empty_cache(bool wait) {
  Lock lock(mutex_);
  if (capturing()) return;
  if (wait) {
    drain(lock);
  } else {
    collect();
  }
  give_back(cache_.evict(0), lock);
}

std::uint64_t Heap::shut_down() {
  pass_through(true);
  empty_cache(true);
  Lock lock(mutex_);
  std::vector<RawBlock> arenas;
  for (auto& [rank, arena] : arenas_) {
    const Ranges& ranges = arena.server.ranges();
    if (arena.base == nullptr || !ranges.used().empty()) continue;
    arenas.push_back({arena.base, ranges.size(), nullptr});
    stats_[kArenas] -= ranges.size();
    stats_[kCached] += ranges.size();  // which `give_back` takes off again
    arena.base = nullptr;
    arena.state = Arena::kFailed;
  }
  give_back(arenas, lock);
  waiting_.destroy_spare();
  return blocks_.size();
}

}  // namespace memplan::cuda
