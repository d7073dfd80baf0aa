// Blocks that are freed, and arenas that go once they have none.
#include <algorithm>
#include <utility>

#include "cuda/arenas.h"

namespace memplan::cuda {

Arenas::Arena* Arenas::holding(const void* address) {
  for (Arena& arena : all_) {
    if (arena.base == nullptr || address < arena.base) continue;
    const auto offset =
        static_cast<std::uint64_t>(static_cast<const char*>(address) - arena.base);
    if (offset < arena.server.ranges().size()) return &arena;
  }
  return nullptr;
}

bool Arenas::holds(const void* address) {
  Lock lock(mutex_);
  return holding(address) != nullptr;
}

bool Arenas::release(void* address, Blocks& returned) noexcept {
  Lock lock(mutex_);
  Arena* arena = holding(address);
  if (arena == nullptr) return false;
  try {
    if (!users_.empty()) {
      if (const auto used = users_.find(address); used != users_.end()) {
        DeviceGuard guard(runtime_, device_);
        waiting_.add(address, std::move(used->second), !pool_open());
        users_.erase(used);
        return true;
      }
    }
    finish(*arena, static_cast<std::uint64_t>(static_cast<char*>(address) - arena->base));
    if (arena->retired || arena->aside || arena->unfit) {
      collect();
      sweep(returned);
    }
  } catch (...) {
    // No memory for our own books: the block stays as it is, and nobody gets it.
    ++stats_[kStranded];
  }
  return true;
}

void Arenas::finish(Arena& arena, std::uint64_t offset) {
  stats_.shrink(kInUse, arena.server.ranges().give_back(offset));
}

bool Arenas::record_stream(void* address, const StreamValue& stream, Stream handle) {
  Lock lock(mutex_);
  Arena* arena = holding(address);
  if (arena == nullptr) return false;
  if (stream.id == arena->stream) return true;
  std::vector<Stream>& users = users_[address];
  if (std::find(users.begin(), users.end(), handle) == users.end()) {
    users.push_back(handle);
  }
  return true;
}

// Blocks whose streams are done with them are free from now on.
void Arenas::collect() {
  if (waiting_.blocks() == 0 || pool_open()) return;
  DeviceGuard guard(runtime_, device_);
  for (void* address : waiting_.collect()) {
    Arena* arena = holding(address);
    finish(*arena, static_cast<std::uint64_t>(static_cast<char*>(address) - arena->base));
  }
}

// ---- arenas that go

bool Arenas::empty(const Arena& arena) const {
  return arena.server.ranges().used().empty();
}

void Arenas::take_back(Arena& arena, Blocks& returned) {
  stats_.shrink(kArenas, arena.server.ranges().size());
  returned.push_back(std::move(arena.block));
  arena.block = {};
  arena.base = nullptr;
  arena.most = 0;
  arena.memory = Arena::Memory::kNone;
}

// Of arenas that serve no more, those without a block.
void Arenas::sweep(Blocks& returned) {
  for (auto at = all_.begin(); at != all_.end();) {
    Arena& arena = *at;
    const bool there = arena.memory == Arena::Memory::kThere;
    const bool goes = arena.retired || arena.aside || arena.unfit;
    if (goes && there && empty(arena)) {
      take_back(arena, returned);
    }
    if (arena.retired && arena.memory == Arena::Memory::kNone) {
      ended_ += arena.server.counts();
      at = all_.erase(at);
    } else {
      ++at;
    }
  }
}

Arenas::Blocks Arenas::give_back() {
  Lock lock(mutex_);
  collect();
  Blocks returned;
  for (Arena& arena : all_) {
    if (arena.memory != Arena::Memory::kThere || !empty(arena)) continue;
    take_back(arena, returned);
    ++stats_[kArenasGivenBack];
    ++arena.refusals;
    arena.tried = true;  // not again before the next step
  }
  return returned;
}

Arenas::Blocks Arenas::stand_aside(unsigned rank, bool aside) {
  Lock lock(mutex_);
  Blocks returned;
  if (Arena* arena = of_rank(rank)) arena->aside = aside;
  sweep(returned);
  return returned;
}

}  // namespace memplan::cuda
