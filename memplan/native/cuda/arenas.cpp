#include "cuda/arenas.h"

#include <algorithm>
#include <utility>

namespace memplan::cuda {
namespace {

// Steps whose ends are kept for whoever asks; those after them are not.
constexpr std::size_t kMostSteps = 4096;

}  // namespace

// ---- plans

Arenas::Blocks Arenas::load(unsigned rank, Table&& table, std::uint64_t reserved) {
  Lock lock(mutex_);
  shadow_.expect(reserved);
  return swap_in(rank, std::move(table));
}

Arenas::Blocks Arenas::swap_in(unsigned rank, Table&& table) {
  Arena*& place = by_rank_[rank];
  if (place != nullptr) place->retired = true;
  const std::uint64_t bytes = table.arena_bytes;
  place = &all_.emplace_back(std::move(table), bytes);
  Blocks returned;
  sweep(returned);
  return returned;
}

bool Arenas::adopt(unsigned rank, Table&& table) {
  Lock lock(mutex_);
  Arena* arena = of_rank(rank);
  if (arena == nullptr) return false;
  if (table.arena_bytes <= arena->server.ranges().size()) {
    arena->larger.reset();
    arena->server.adopt(std::move(table));
  } else {
    arena->larger = std::move(table);
  }
  return true;
}

Arenas::Blocks Arenas::retire() {
  Lock lock(mutex_);
  collect();
  for (Arena& arena : all_) arena.retired = true;
  by_rank_.clear();
  shadow_.expect_nothing();
  Blocks returned;
  sweep(returned);
  return returned;
}

Arenas::Blocks Arenas::next_step() {
  Lock lock(mutex_);
  collect();
  Blocks returned;
  for (auto& [rank, place] : by_rank_) {
    if (!place->server.table().unmarked) end_step(*place);
  }
  // Those that go on in another arena do so from the first repeated step on.
  for (auto& [rank, place] : by_rank_) {
    if (!place->larger || !place->server.looped()) continue;
    std::vector<StepEnd> ended = std::move(place->ended);
    Blocks more = swap_in(rank, std::move(*place->larger));
    place->ended = std::move(ended);
    for (c10::DataPtr& block : more) returned.push_back(std::move(block));
  }
  sweep(returned);
  return returned;
}

void Arenas::end_step(Arena& arena) {
  const StepEnd end = arena.server.next_step();
  arena.tried = arena.unfit = false;
  arena.departed = 0;
  arena.evidence = {};
  if (arena.wait > 0) --arena.wait;
  if (arena.draining > 0) --arena.draining;
  ++steps_;
  if (end.hot && arena.ended.size() < kMostSteps) arena.ended.push_back(end);
  if (end.adopted) arena.aside = false;
}

Arenas::Arena* Arenas::of_rank(unsigned rank) {
  const auto found = by_rank_.find(rank);
  return found == by_rank_.end() ? nullptr : found->second;
}

// ---- blocks that are freed

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

Arenas::Released Arenas::release(void* address, Blocks& returned) noexcept {
  Lock lock(mutex_);
  Arena* arena = holding(address);
  if (arena == nullptr) {
    return shadow_.release(address) ? Released::kTorchs : Released::kUnknown;
  }
  try {
    if (!users_.empty()) {
      if (const auto used = users_.find(address); used != users_.end()) {
        DeviceGuard guard(runtime_, device_);
        waiting_.add(address, std::move(used->second), !pool_open());
        users_.erase(used);
        return Released::kOurs;
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
  return Released::kOurs;
}

void Arenas::finish(Arena& arena, std::uint64_t offset) {
  shadow_.release(arena.base + offset);
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
  shadow_.arena_gone(arena.shadow, arena.stream);
  returned.push_back(std::move(arena.block));
  arena.block = {};
  arena.base = nullptr;
  arena.most = 0;
  arena.draining = 0;
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
  shadow_.empty_outside();  // as torch has done by now
  return unused(true);
}

Arenas::Blocks Arenas::empty_cache() {
  if (pool_open()) return {};
  Lock lock(mutex_);
  Blocks returned = unused(false);
  shadow_.empty_cache();
  return returned;
}

void Arenas::emptied() {
  Lock lock(mutex_);
  shadow_.empty_outside();
}

Arenas::Blocks Arenas::unused(bool ran_out) {
  collect();
  Blocks returned;
  for (Arena& arena : all_) {
    if (arena.memory != Arena::Memory::kThere || !empty(arena)) continue;
    take_back(arena, returned);
    ++stats_[kArenasGivenBack];
    if (ran_out) ++arena.refusals;
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

// ---- what came of it

std::vector<StepEnd> Arenas::take_steps(unsigned rank) {
  Lock lock(mutex_);
  Arena* arena = of_rank(rank);
  return arena == nullptr ? std::vector<StepEnd>{} : std::exchange(arena->ended, {});
}

std::vector<std::uint64_t> Arenas::largest(unsigned rank) {
  Lock lock(mutex_);
  Arena* arena = of_rank(rank);
  return arena == nullptr ? std::vector<std::uint64_t>{}
                          : arena->server.largest();
}

std::uint64_t Arenas::reserved_bytes(unsigned rank) {
  Lock lock(mutex_);
  Arena* arena = of_rank(rank);
  if (arena == nullptr) return 0;
  const bool none = arena->memory == Arena::Memory::kNone;
  return none ? kMostBytes : arena->server.ranges().size();
}

std::uint64_t Arenas::planned_bytes(unsigned rank) {
  Lock lock(mutex_);
  Arena* arena = of_rank(rank);
  return arena == nullptr ? 0 : arena->server.table().arena_bytes;
}

bool Arenas::aside(unsigned rank) {
  Lock lock(mutex_);
  Arena* arena = of_rank(rank);
  return arena != nullptr && arena->aside;
}

Stats Arenas::stats() {
  Lock lock(mutex_);
  Stats now = stats_;
  now[kPending] = waiting_.blocks();
  now[kEventFailures] = waiting_.failures();
  now[kNatively] = shadow_.most_natively();
  return now;
}

PhaseCounts Arenas::counts() {
  Lock lock(mutex_);
  PhaseCounts sum = without_arena_;
  sum += ended_;
  for (const Arena& arena : all_) sum += arena.server.counts();
  return sum;
}

std::uint64_t Arenas::blocks() {
  Lock lock(mutex_);
  std::uint64_t count = 0;
  for (const Arena& arena : all_) count += arena.server.ranges().used().size();
  return count;
}

}  // namespace memplan::cuda
