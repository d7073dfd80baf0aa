// All memory of one device: the arenas of its streams, and what lies outside them.
//
// An arena belongs to one stream, so memory in it is reused as soon as it is freed;
// a block that other streams used waits for them. Whatever the plan says, a range is
// handed out only when no block, alive or waiting, overlaps it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/cache.h"
#include "cuda/runtime.h"
#include "cuda/stats.h"
#include "cuda/waiting.h"
#include "replay/serve.h"

namespace memplan::cuda {

constexpr std::uint64_t kGranularity = 512;  // as torch's own allocator

class Heap {
 public:
  Heap(const Runtime& runtime, int device)
      : runtime_(runtime), device_(device), waiting_(runtime) {}

  // Serves one stream from a plan: 0 is the default stream, n the n-th other one that
  // asks for memory. The arena is taken from CUDA when its stream first asks. False if
  // that stream has a plan already.
  bool load(unsigned rank, Table&& table);
  // An address, or null for 0 bytes. Throws OutOfMemoryError, or CudaError where CUDA
  // fails otherwise or the stream is under graph capture.
  void* allocate(std::uint64_t bytes, Stream stream);
  // False if no block of this heap is at `address`. Never throws: it is called from
  // destructors.
  bool release(void* address) noexcept;
  // `stream` uses the block, too. False if no block of this heap is at `address`.
  bool record_stream(void* address, Stream stream);

  void next_step();
  // From now on, every request is served outside the arenas, or in them again.
  void pass_through(bool on);
  // While pools are open torch may be capturing: no event is touched then.
  void pool(bool open);
  // Gives freed blocks back to CUDA. With `wait`, waits for those in use on the device.
  void empty_cache(bool wait);
  void set_cache_limit(std::uint64_t bytes);
  // Gives everything back that can be. Returns how many blocks are still in use.
  std::uint64_t shut_down();
  Stats stats();
  // Of all streams; for those without an arena the warm-up is over as soon as it is for
  // some other.
  PhaseCounts counts();

 private:
  enum class Arena { kUnmade, kInMaking, kReady, kFailed };
  struct Planned {
    Planned(Table table, std::uint64_t bytes)
        : server(std::move(table), bytes, kGranularity) {}

    Server server;
    char* base = nullptr;
    Arena state = Arena::kUnmade;
  };
  struct Block {
    std::uint64_t size;
    Stream stream;
    Planned* arena;  // null: a block of cudaMalloc's own
    std::vector<Stream> users;
    bool freed = false;
  };
  using Lock = std::unique_lock<std::mutex>;

  void refuse_capture(Stream stream, std::uint64_t bytes);
  Planned* arena_of(Stream stream, Lock& lock);
  void make_arena(Planned& arena, Lock& lock);
  void* from_plan(Planned* arena, std::uint64_t bytes, Stream stream);
  void* last_resort(Planned* arena, std::uint64_t bytes, Stream stream);
  void* hand_out(void* address, std::uint64_t size, Stream stream, Planned* arena);
  void* from_cuda(std::uint64_t bytes, Lock& lock);
  [[noreturn]] void out_of_memory(std::uint64_t bytes);
  bool capturing();
  void collect();
  void finish(void* address);
  void drain(Lock& lock);
  void give_back(const std::vector<RawBlock>& blocks, Lock& lock);

  const Runtime& runtime_;
  const int device_;
  std::mutex mutex_;  // never held across a call that waits for the device
  std::map<unsigned, Planned> arenas_;  // by rank of the stream
  std::map<Stream, unsigned> ranks_ = {{nullptr, 0}};
  std::unordered_map<void*, Block> blocks_;  // alive, or freed and waiting
  Waiting waiting_;
  Cache cache_;
  std::uint64_t cache_limit_ = 256 << 20;
  unsigned pools_ = 0;
  bool serving_ = true;
  Stats stats_;
  PhaseCounts without_arena_;  // requests that came while their stream had no arena
};

}  // namespace memplan::cuda
