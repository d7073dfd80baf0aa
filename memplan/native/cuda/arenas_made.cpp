// Arenas that are made.
#include <utility>

#include "cuda/arenas.h"

namespace memplan::cuda {

std::uint64_t Arenas::arena_bytes(const Arena* arena) const {
  return arena->server.ranges().size();
}

void Arenas::defer(Arena* arena) {
  Lock lock(mutex_);
  arena->memory = Arena::Memory::kNone;
  arena->wait = arena->patience;
  arena->patience *= 2;
  ++stats_[kArenasDeferred];
}

void* Arenas::made(const Answer& answer, c10::DataPtr block, std::uint64_t requested) {
  const std::uint64_t bytes = round_up(requested, kGranularity);
  Lock lock(mutex_);
  Arena& arena = *answer.wanted;
  if (arena.retired) {  // meanwhile: `block` goes back once the lock is released
    arena.memory = Arena::Memory::kNone;
    return nullptr;
  }
  arena.base = static_cast<char*>(block.data);
  arena.block = std::move(block);
  if (arena.base == nullptr) {
    arena.memory = Arena::Memory::kNone;
    ++arena.refusals;
    ++stats_[kArenasRefused];
    return nullptr;
  }
  arena.memory = Arena::Memory::kThere;
  arena.departed = arena.server.departed_bytes();
  stats_.grow(kArenas, arena.server.ranges().size());
  ++stats_[kArenasMade];
  const std::int64_t offset =
      arena.server.place_followed(answer.offset, bytes, answer.brief);
  return address_in(arena, offset, bytes);
}

}  // namespace memplan::cuda
