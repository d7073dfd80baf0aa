// What Arenas answer to requests, and the arenas that are made for them.
#include <algorithm>
#include <utility>

#include "cuda/arenas.h"

namespace memplan::cuda {
namespace {

// So often memory for an arena is asked for, at the beginning of a step each.
constexpr unsigned kAttempts = 3;
constexpr std::uint64_t kSparePart = 64;  // of an arena: as much may lie idle beside it
constexpr std::uint64_t kLargePart = 64;  // of an arena: as large a block counts as large
constexpr unsigned kMostDrain = 1 << 16;  // steps

}  // namespace

unsigned Arenas::ranked(std::int64_t stream) {
  for (const auto& [known, rank] : ranks_) {
    if (known == stream) return rank;
  }
  const auto rank = static_cast<unsigned>(ranks_.size());
  ranks_.emplace_back(stream, rank);
  return rank;
}

unsigned Arenas::rank_of(std::int64_t stream) {
  Lock lock(mutex_);
  return ranked(stream);
}

bool Arenas::lies_on(const void* address, unsigned rank) {
  Lock lock(mutex_);
  const std::optional<std::int64_t> stream = shadow_.stream_of(address);
  return stream && ranked(*stream) == rank;
}

Arenas::Arena* Arenas::serving(std::int64_t stream) { return of_rank(ranked(stream)); }

Arenas::Answer Arenas::allocate(std::uint64_t requested, std::int64_t stream) {
  if (requested > kMostBytes) return {};
  const std::uint64_t bytes = round_up(requested, kGranularity);
  Lock lock(mutex_);
  collect();
  Arena* arena = serving(stream);
  const Shadow::Asked asked = shadow_.request(bytes, stream);
  Answer answer;
  if (arena == nullptr) {
    count_elsewhere(bytes);
    make_room(nullptr, bytes, stream, false, answer);
  } else {
    answer = placed(*arena, bytes, stream);
  }
  answer.asked = asked;
  if (answer.address != nullptr) shadow_.in_arena(answer.address, asked);
  return answer;
}

Arenas::Answer Arenas::placed(Arena& arena, std::uint64_t bytes, std::int64_t stream) {
  Answer answer;
  const bool there = arena.memory == Arena::Memory::kThere;
  if (arena.aside || arena.unfit || arena.server.overdue()) {
    // While older blocks keep the arena, more memory beside it would be too much; but if
    // it never was of use, it is to get empty.
    if (there && arena.most >= arena.server.ranges().size() / 2) {
      answer.address = address_in(arena, arena.server.serve_anywhere(bytes), bytes);
    } else {
      arena.server.pass(bytes);
    }
    if (answer.address == nullptr) make_room(&arena, bytes, stream, true, answer);
    return answer;
  }
  if (arena.server.turns(bytes)) {
    end_step(arena);
    turns_.note();
  }
  if (there && arena.draining > 0 && empty(arena)) give_up(arena, answer);
  if (arena.server.ranges().size() > 0 && arena.memory != Arena::Memory::kThere) {
    follow(arena, bytes, stream, answer);
    if (answer.wanted == nullptr) make_room(&arena, bytes, stream, false, answer);
    return answer;
  }
  const std::uint64_t before = arena.server.departed_bytes();
  if (arena.draining > 0) {
    arena.server.follow(bytes);
  } else {
    answer.address = serve(arena, bytes, stream);
  }
  if (answer.address == nullptr) {
    const bool departs = arena.server.departed_bytes() > before;
    make_room(&arena, bytes, stream, departs, answer);
  }
  return answer;
}

// Before torch serves `bytes` of a stream, whose arena this is if it has one: where it
// would reserve more for them than it may, the arena is given back if it is empty, or takes
// them in if they depart from the plan; or what torch keeps is given back.
void Arenas::make_room(Arena* arena, std::uint64_t bytes, std::int64_t stream,
                       bool departs, Answer& answer) {
  if (shadow_.excess(bytes, stream) == 0) {
    answer.empty = arena != nullptr && outgrows(*arena, bytes, stream);
    return;
  }
  if (arena != nullptr && arena->memory == Arena::Memory::kThere) {
    if (empty(*arena)) {
      give_up(*arena, answer);
    } else if (departs) {
      answer.address = address_in(*arena, arena->server.bring_in(bytes), bytes);
      if (answer.address != nullptr) return;
    }
  }
  const std::uint64_t excess = shadow_.excess(bytes, stream);
  if (excess == 0) return;
  // What is given back is to make up for the excess, or for the block at least.
  if (shadow_.idle() >= std::min(excess, bytes) && may_empty()) {
    answer.empty = true;
  } else if (arena != nullptr && arena->memory == Arena::Memory::kThere) {
    if (arena->draining == 0) {
      arena->draining = arena->drain;
      arena->drain = std::min(2 * arena->drain, kMostDrain);
    }
  }
}

// Whether torch has no room for a large block, larger than all before it, and keeps as
// much that is too small: steps of varying sizes would each leave one more block.
bool Arenas::outgrows(Arena& arena, std::uint64_t bytes, std::int64_t stream) {
  const Server& server = arena.server;
  if (!server.table().by_lifespan || !server.looped() || bytes <= arena.largest_beside ||
      bytes < server.ranges().size() / kLargePart) {
    return false;
  }
  const std::uint64_t growth = shadow_.growth(bytes, stream);
  if (growth == 0) return false;
  arena.largest_beside = bytes;
  return shadow_.idle() >= growth;
}

// The arena, which is empty, goes back for some steps.
void Arenas::give_up(Arena& arena, Answer& answer) {
  take_back(arena, answer.returned);
  ++stats_[kArenasGivenBack];
  arena.tried = true;
  arena.wait = arena.patience;
  arena.patience *= 2;
}

// Whether the cache may be emptied for want of room: twice as rarely each time, since the
// program waits for it.
bool Arenas::may_empty() {
  if (steps_ < empty_from_) return false;
  empty_from_ = steps_ + empty_pause_;
  empty_pause_ *= 2;
  return true;
}

void Arenas::pass_by(std::uint64_t requested, std::int64_t stream) {
  const std::uint64_t bytes = round_up(std::min(requested, kMostBytes), kGranularity);
  Lock lock(mutex_);
  ++stats_[kInPools];
  // The stream of a capture gets no number of its own here.
  const auto known = std::find_if(ranks_.begin(), ranks_.end(),
                                  [&](const auto& entry) { return entry.first == stream; });
  Arena* arena = known == ranks_.end() ? nullptr : of_rank(known->second);
  if (arena == nullptr || arena->aside || arena->server.overdue()) return;
  if (arena->server.turns(bytes)) {
    end_step(*arena);
    turns_.note();
  }
  arena->server.pass_by(bytes);
}

// On a stream without a plan.
void Arenas::count_elsewhere(std::uint64_t bytes) {
  ++stats_[kOtherStream];
  const bool looped = std::any_of(by_rank_.begin(), by_rank_.end(), [](const auto& entry) {
    return entry.second->server.looped();
  });
  Counts& counts = without_arena_.of(looped);
  ++counts.requests;
  ++counts.fallback;
  counts.fallback_bytes += bytes;
}

void* Arenas::serve(Arena& arena, std::uint64_t bytes, std::int64_t stream) {
  const Server& server = arena.server;
  const std::uint64_t before = server.departed_bytes();
  const Place place = arena.server.serve(bytes, shadow_.has_room(bytes, stream));
  void* address = address_in(arena, place.offset, bytes);
  // What is torch's as planned is neither: a weight, a workspace.
  if (server.departed_bytes() > before) {
    arena.evidence.departed(bytes);
  } else if (place.entry != kNoMatch) {
    arena.evidence.followed(bytes, bytes);
  }
  const std::uint64_t size = server.ranges().size();
  // It was made for this step, and the step is another after all.
  arena.unfit = size > 0 && server.warming_up() &&
                (server.departed_bytes() > arena.departed + size / 2 ||
                 arena.evidence.against(size));
  return address;
}

void Arenas::follow(Arena& arena, std::uint64_t bytes, std::int64_t stream,
                    Answer& answer) {
  const Followed found = arena.server.follow(bytes);
  arena.evidence.departed(found.departed);
  if (found.offset < 0) return;
  arena.evidence.followed(bytes, found.planned);
  const std::uint64_t size = arena.server.ranges().size();
  if (arena.memory != Arena::Memory::kNone || arena.tried || arena.wait > 0 ||
      arena.refusals >= kAttempts || !arena.evidence.enough(size) ||
      (arena.server.table().by_lifespan && arena.evidence.late(size, bytes))) {
    return;
  }
  arena.tried = true;
  const std::uint64_t growth = shadow_.growth(size, stream);
  const std::uint64_t idle = shadow_.idle(), limit = shadow_.limit();
  const std::uint64_t with = shadow_.reserved() + growth;
  if (growth > 0 && with - idle > limit) {
    ++stats_[kArenasDeferred];
    return;
  }
  arena.memory = Arena::Memory::kInMaking;
  arena.stream = stream;
  // In the warm-up nothing has settled yet, and what torch keeps would stay beside it.
  const bool spare = !arena.server.looped() && idle > size / kSparePart;
  answer.empty = growth > 0 && (with > limit || spare);
  arena.promised = growth;
  shadow_.promise(growth);
  answer.wanted = &arena;
  answer.offset = found.offset;
  answer.brief = found.brief;
}

// Of a range that was taken there, or null for -1.
void* Arenas::address_in(Arena& arena, std::int64_t offset, std::uint64_t bytes) {
  if (offset < 0) return nullptr;
  stats_.grow(kInUse, bytes);
  arena.most = std::max(arena.most, arena.server.ranges().bytes_in_use());
  return arena.base + offset;
}

void* Arenas::last_resort(std::uint64_t requested, std::int64_t stream) {
  if (requested > kMostBytes) return nullptr;
  const std::uint64_t bytes = round_up(requested, kGranularity);
  Lock lock(mutex_);
  Arena* arena = serving(stream);
  if (arena == nullptr || arena->memory != Arena::Memory::kThere) return nullptr;
  Ranges& ranges = arena->server.ranges();
  const std::int64_t free = ranges.take_anywhere(bytes, ranges.size());
  if (free >= 0) ++stats_[kLastResort];
  return address_in(*arena, free, bytes);
}

// ---- arenas that are made

std::uint64_t Arenas::arena_bytes(const Arena* arena) const {
  return arena->server.ranges().size();
}

void* Arenas::made(const Answer& answer, c10::DataPtr block, std::uint64_t requested) {
  const std::uint64_t bytes = round_up(requested, kGranularity);
  Lock lock(mutex_);
  Arena& arena = *answer.wanted;
  shadow_.settle(std::exchange(arena.promised, 0));
  if (arena.retired) {  // meanwhile: `block` goes back once the lock is released
    arena.memory = Arena::Memory::kNone;
    const std::uint64_t size = arena.server.ranges().size();
    if (block.data != nullptr) shadow_.arena_gone(shadow_.arena(size, arena.stream), arena.stream);
    return nullptr;
  }
  arena.base = static_cast<char*>(block.data);
  arena.block = std::move(block);
  if (arena.base == nullptr) {
    arena.memory = Arena::Memory::kNone;
    ++arena.refusals;
    ++stats_[kArenasRefused];
    shadow_.empty_outside();  // as torch did, in search of memory
    return nullptr;
  }
  arena.memory = Arena::Memory::kThere;
  arena.departed = arena.server.departed_bytes();
  arena.shadow = shadow_.arena(arena.server.ranges().size(), arena.stream);
  stats_.grow(kArenas, arena.server.ranges().size());
  ++stats_[kArenasMade];
  const std::int64_t offset =
      arena.server.place_followed(answer.offset, bytes, answer.brief);
  void* address = address_in(arena, offset, bytes);
  if (address != nullptr) shadow_.in_arena(address, answer.asked);
  return address;
}

void Arenas::served(const Answer& answer, const void* address, std::uint64_t requested) {
  if (answer.asked.native == nullptr) return;
  Lock lock(mutex_);
  if (address == nullptr) {
    shadow_.drop(answer.asked);
  } else if (holding(address) != nullptr) {  // as the last resort
    shadow_.in_arena(address, answer.asked);
  } else {
    shadow_.outside(address, answer.asked, round_up(requested, kGranularity));
  }
}

void Arenas::failed(const Answer& answer, bool ran_out) noexcept {
  if (answer.asked.native == nullptr) return;
  Lock lock(mutex_);
  try {
    if (ran_out) {
      shadow_.fail(answer.asked);
    } else {
      shadow_.drop(answer.asked);
    }
  } catch (...) {
    ++stats_[kStranded];  // it stays in the models
  }
}

}  // namespace memplan::cuda
