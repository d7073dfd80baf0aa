// The arenas of one device: one for each stream that has a plan.
//
// An arena is a block of torch's own allocator, taken when the program has shown that it
// follows the plan, and given back when the plan is given up, or memory runs out while it
// is empty. Memory in it is reused on its stream as soon as it is freed, since a stream
// runs in order; a block that other streams used waits for them. Whatever the plan says,
// a range is handed out only when no block, alive or waiting, overlaps it.
//
// torch is to reserve no more than it would without plans (see Shadow): no arena is made
// before it fits below that. Where torch would reserve more for a request, an arena without
// a block goes back to it, or a departure goes into the arena.
//
// Nothing here calls torch's allocator: it may take the interpreter's lock, so no lock
// of ours is held then. Who has to says so: see `Answer`, and what `release` returns.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "alloc/c10.h"
#include "alloc/serving.h"
#include "cuda/shadow.h"
#include "cuda/torch.h"
#include "cuda/waiting.h"
#include "replay/server.h"

namespace memplan::cuda {

constexpr std::uint64_t kGranularity = 512;  // as torch's own allocator
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;  // no device has them

// What became of one device's arenas, in bytes and counts; what became of its requests,
// PhaseCounts tells.
enum Stat : std::size_t {
  kArenas,          // bytes of the arenas that are there now
  kArenasPeak,
  kInUse,           // bytes of blocks in them: alive, or waited for
  kInUsePeak,
  kNatively,        // that torch would have reserved at most without plans, by a model
  kArenasMade,      // times that one came to be there
  kArenasRefused,   // times that torch had no memory for one
  kArenasDeferred,  // times that one was not made: torch would have reserved more
  kArenasGivenBack, // times that an unused one was given back
  kOtherStream,     // requests on a stream without an arena
  kInPools,         // requests under capture or in a memory pool, left to torch
  kInterrupted,     // requests between interrupt and resume
  kPending,         // blocks freed that wait for another stream
  kEventFailures,   // event calls that failed; the block waited longer
  kLastResort,      // requests that torch had no memory for, placed in an arena
  kOutOfMemory,     // requests that failed
  kStranded,        // blocks lost to planning, for want of memory for our own books
  kStatCount,
};

constexpr const char* kStatNames =
    "arena_bytes,arena_bytes_peak,in_use_bytes,in_use_bytes_peak,native_bytes_peak,"
    "arenas_made,arenas_refused,arenas_deferred,arenas_given_back,other_stream,in_pools,"
    "interrupted,pending_blocks,event_failures,last_resort,out_of_memory,stranded_blocks";

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

// Whether a program follows a plan well enough for the plan's arena to be made.
//
// An arena is one large block, taken at once. Of a plan that does not fit it would be a
// burden from the first request to the last, so requests are only followed at first, and
// torch's own allocator serves them. What counts is what the plan has a place for: weights
// are the same whatever the batch.
class Evidence {
 public:
  // A request for `bytes` that the plan has a place of `planned` bytes for.
  void followed(std::uint64_t bytes, std::uint64_t planned) {
    ++requests_;
    followed_ += bytes;
    planned_ += planned;
  }
  // That are none of the plan's where it expects one that it has a place for, or were
  // expected and did not come. (While weights are made, it may be anything: a checkpoint.)
  void departed(std::uint64_t bytes) { departed_ += bytes; }
  // Enough for an arena of `size` bytes: some requests or a large one, nearly all as
  // planned, and not much smaller.
  bool enough(std::uint64_t size) const {
    return (requests_ >= kRequests || followed_ >= size / kLargePart) &&
           followed_ >= size / kLeastPart && followed_ >= kTimes * departed_ &&
           kSmallest * followed_ >= planned_;
  }
  // Before the latest request, of `bytes`, a good part of an arena of `size` bytes came in
  // this step, and lies elsewhere.
  bool late(std::uint64_t size, std::uint64_t bytes) const {
    return followed_ - bytes > size / kGoodPart;
  }
  // Enough for that the step is another: a good part of the arena, and next to nothing of
  // it as planned.
  bool against(std::uint64_t size) const {
    return departed_ >= size / kGoodPart && departed_ >= kTimes * followed_;
  }

 private:
  static constexpr std::uint64_t kRequests = 4;
  static constexpr std::uint64_t kLargePart = 256;  // of the arena
  static constexpr std::uint64_t kLeastPart = 1024;
  static constexpr std::uint64_t kGoodPart = 32;
  static constexpr std::uint64_t kTimes = 9;     // as many bytes as departed
  static constexpr std::uint64_t kSmallest = 2;  // half of what is planned

  std::uint64_t requests_ = 0;
  std::uint64_t followed_ = 0;
  std::uint64_t planned_ = 0;
  std::uint64_t departed_ = 0;
};

class Arenas {
 public:
  struct Arena {
    Arena(Table table, std::uint64_t bytes)
        : server(std::move(table), bytes, kGranularity) {}

    enum class Memory { kNone, kInMaking, kThere };

    Server server;
    c10::DataPtr block;
    Shadow::Block* shadow = nullptr;
    char* base = nullptr;
    std::int64_t stream = 0;
    Memory memory = Memory::kNone;
    Evidence evidence;  // of this step
    unsigned refusals = 0;
    unsigned wait = 0;           // steps before memory is asked for again
    unsigned patience = 8;       // how many next time
    std::uint64_t departed = 0;  // bytes of the step, before the arena was made
    std::uint64_t most = 0;      // bytes ever in use
    bool tried = false;          // in this step
    bool unfit = false;    // this step of the warm-up departs too much
    bool aside = false;    // by Python's word
    bool retired = false;  // another plan took over, or none
    // Torch reserved more than it would have without the arena: for so many steps yet, or
    // until the arena is empty and goes back, torch serves what it can.
    unsigned draining = 0;
    unsigned drain = 64;  // how many next time
    std::uint64_t promised = 0;  // bytes, see Shadow::promise
    std::optional<Table> larger;  // adopted, and too large for this arena
    std::uint64_t largest_beside = 0;  // bytes; see Arenas::outgrows
    std::vector<StepEnd> ended;
  };
  using Blocks = std::vector<c10::DataPtr>;  // of torch's allocator: to be given back
  // Of a request: its address in an arena, or null, and then perhaps the arena that is to
  // be made for it, its offset there, and whether it is freed soon. Before torch serves it
  // or the arena, `returned` goes back, and the cache is emptied where `empty` says so.
  struct Answer {
    void* address = nullptr;
    Arena* wanted = nullptr;
    std::int64_t offset = -1;
    bool brief = false;
    bool empty = false;
    Blocks returned = {};
    Shadow::Asked asked = {};
  };
  enum class Released { kUnknown, kOurs, kTorchs };

  Arenas(const Runtime& runtime, int device)
      : runtime_(runtime), device_(device), waiting_(runtime) {}

  // Serves one stream from a plan, in place of what served it before: 0 is the default
  // stream, n the n-th other one that asks for memory.
  // reserved: as Shadow::expect has it.
  Blocks load(unsigned rank, Table&& table, std::uint64_t reserved);
  // From the next step on, go by another table; in a new arena where the one that is
  // there is too small. False if that stream has no plan.
  bool adopt(unsigned rank, Table&& table);
  // No request is served any more; arenas go as they get empty.
  Blocks retire();

  Answer allocate(std::uint64_t bytes, std::int64_t stream);
  // A request under capture or in a pool, which torch serves: the recording had it, too.
  void pass_by(std::uint64_t bytes, std::int64_t stream);
  std::uint64_t arena_bytes(const Arena* arena) const;
  // `block` is its memory, or empty if there was none. Returns the address of the request
  // for `bytes` that wanted it, or null.
  void* made(const Answer& answer, c10::DataPtr block, std::uint64_t bytes);
  // torch serves the request for `bytes` at `address`; null: its end will not be seen.
  void served(const Answer& answer, const void* address, std::uint64_t bytes);
  // torch does not serve it; ran_out: for want of memory.
  void failed(const Answer& answer, bool ran_out) noexcept;
  // There is no other memory: somewhere in the stream's arena, or null.
  void* last_resort(std::uint64_t bytes, std::int64_t stream);
  // Memory has run out: the device's arenas that are empty.
  Blocks give_back();
  // The program has torch empty its cache; what is returned goes back before.
  Blocks empty_cache();
  // The cache was emptied for `Answer::empty`.
  void emptied();

  // Whose block that is: of these arenas, or one that torch served and is to free.
  Released release(void* address, Blocks& returned) noexcept;
  // `stream` uses the block that is at `address`, too.
  bool holds(const void* address);
  // Whether the block at `address`, an arena's or one that torch serves, is a stream's.
  bool lies_on(const void* address, unsigned rank);
  // Of a stream, in the order in which they asked for memory; 0 is the default one.
  unsigned rank_of(std::int64_t stream);
  bool record_stream(void* address, const StreamValue& stream, Stream handle);

  Blocks next_step();
  // While pools are open, torch may be capturing: nothing is served and no event touched.
  void pool(bool open) { pools_.fetch_add(open ? 1 : -1); }
  bool pool_open() const { return pools_.load(std::memory_order_relaxed) > 0; }
  void note(Stat stat) {
    std::lock_guard lock(mutex_);
    ++stats_[stat];
  }
  // Until another table is adopted, no plan is followed: requests go to the arena's free
  // space while older blocks keep it, and to torch; or not any more.
  Blocks stand_aside(unsigned rank, bool aside);
  bool aside(unsigned rank);
  // The repeated steps that ended since the last call.
  std::vector<StepEnd> take_steps(unsigned rank);
  std::vector<std::uint64_t> largest(unsigned rank);
  std::uint64_t planned_bytes(unsigned rank);
  // That an arena for another plan may have: as many as the one that is there, or any.
  std::uint64_t reserved_bytes(unsigned rank);
  // Of plans without marks, the steps that requests showed.
  Turns& turns() { return turns_; }

  int device() const { return device_; }
  // To be looked at while nothing is asked of the device.
  const Shadow& shadow() const { return shadow_; }
  Stats stats();
  PhaseCounts counts();
  // Blocks alive in the arenas, or waited for.
  std::uint64_t blocks();
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  unsigned ranked(std::int64_t stream);
  Arena* serving(std::int64_t stream);
  Arena* of_rank(unsigned rank);
  Arena* holding(const void* address);
  void* address_in(Arena& arena, std::int64_t offset, std::uint64_t bytes);
  Answer placed(Arena& arena, std::uint64_t bytes, std::int64_t stream);
  void* serve(Arena& arena, std::uint64_t bytes, std::int64_t stream);
  bool outgrows(Arena& arena, std::uint64_t bytes, std::int64_t stream);
  void give_up(Arena& arena, Answer& answer);
  void make_room(Arena* arena, std::uint64_t bytes, std::int64_t stream, bool departs,
                 Answer& answer);
  void count_elsewhere(std::uint64_t bytes);
  void follow(Arena& arena, std::uint64_t bytes, std::int64_t stream, Answer& answer);
  bool may_empty();
  void end_step(Arena& arena);
  void finish(Arena& arena, std::uint64_t offset);
  void collect();
  bool empty(const Arena& arena) const;
  void take_back(Arena& arena, Blocks& returned);
  Blocks unused(bool ran_out);
  void sweep(Blocks& returned);
  Blocks swap_in(unsigned rank, Table&& table);

  const Runtime& runtime_;
  const int device_;
  std::mutex mutex_;  // never held across a call into torch's allocator
  std::list<Arena> all_;
  std::map<unsigned, Arena*> by_rank_;
  std::vector<std::pair<std::int64_t, unsigned>> ranks_ = {{0, 0}};  // of each stream
  // Blocks that other streams use: address -> those streams.
  std::unordered_map<void*, std::vector<Stream>> users_;
  Waiting waiting_;
  std::atomic<int> pools_ = 0;
  Shadow shadow_;
  std::uint64_t steps_ = 0;      // that ended, of any stream
  std::uint64_t empty_from_ = 0;  // no earlier is the cache emptied again
  std::uint64_t empty_pause_ = 1;  // steps
  Turns turns_;
  Stats stats_;
  PhaseCounts ended_;          // of arenas that are gone
  PhaseCounts without_arena_;  // requests of streams that have none
};

}  // namespace memplan::cuda
