// The library's C interface: three functions for torch's pluggable allocator, two for
// its memory pools, and those that Python calls to control them.
//
// Nothing here is ever destroyed: frees arrive until the process is gone.
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/failures.h"
#include "cuda/heap.h"
#include "cuda/runtime.h"

#define MEMPLAN_API extern "C" __attribute__((visibility("default")))

namespace memplan::cuda {
namespace {

constexpr std::size_t kMaxDevices = 64;

struct State {
  Runtime runtime;
  std::atomic<bool> loaded = false;
  std::mutex mutex;  // for making heaps
  std::array<std::atomic<Heap*>, kMaxDevices> heaps = {};
  std::atomic<bool> passing = false;
  std::atomic<std::uint64_t> cache_limit = 256 << 20;
  std::atomic<std::uint64_t> unknown_frees = 0;
};

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

Heap* existing(int device) {
  if (device < 0 || device >= static_cast<int>(kMaxDevices)) return nullptr;
  return state().heaps[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

Heap& heap(int device) {
  State& s = state();
  if (Heap* found = existing(device)) return *found;
  if (device < 0 || device >= static_cast<int>(kMaxDevices)) {
    throw CudaError("memplan: no such GPU: " + std::to_string(device));
  }
  std::lock_guard lock(s.mutex);
  if (Heap* found = existing(device)) return *found;
  auto made = std::make_unique<Heap>(s.runtime, device);
  made->pass_through(s.passing);
  made->set_cache_limit(s.cache_limit);
  Heap* const kept = made.release();
  s.heaps[static_cast<std::size_t>(device)].store(kept, std::memory_order_release);
  return *kept;
}

template <typename Function>
void for_each_heap(Function&& function) {
  for (const auto& entry : state().heaps) {
    if (Heap* found = entry.load(std::memory_order_acquire)) function(*found);
  }
}

// The message stays valid until the thread's next one.
const char* told(std::string message) {
  thread_local std::string last;
  last = std::move(message);
  return last.c_str();
}

// As one list, separated by commas: the stats, each counter, and of the hot steps alone.
std::string stat_names() {
  std::string names = kStatNames;
  for (const char* prefix : {",", ",hot_"}) {
    for (const auto& [name, counter] : kCounters) (names += prefix) += name;
  }
  return names;
}

}  // namespace
}  // namespace memplan::cuda

using namespace memplan::cuda;

// ---- what torch calls

// Null for 0 bytes; throws std::exceptions, which torch makes RuntimeErrors.
MEMPLAN_API void* memplan_cuda_alloc(ssize_t size, int device, void* stream) {
  if (!state().loaded) throw CudaError("memplan: the CUDA runtime was not found yet");
  // A negative size is one beyond 2^63: `allocate` says that it is out of memory.
  return heap(device).allocate(static_cast<std::uint64_t>(size), stream);
}

MEMPLAN_API void memplan_cuda_free(void* address, std::size_t, int device, void*) {
  if (address == nullptr) return;
  Heap* const own = existing(device);
  if (own != nullptr && own->release(address)) return;
  bool found = false;
  for_each_heap([&](Heap& other) {
    if (&other != own && !found) found = other.release(address);
  });
  if (!found) ++state().unknown_frees;
}

MEMPLAN_API void memplan_cuda_record_stream(void* address, void* stream) {
  if (address == nullptr) return;
  bool found = false;
  for_each_heap([&](Heap& each) {
    if (!found) found = each.record_stream(address, stream);
  });
}

// torch calls these two as a capture begins and ends, and around its memory pools.
// Their parameters are C++ types, by value, as torch has them, hence no plain C.
MEMPLAN_API void memplan_cuda_begin_pool(
    int device, std::pair<unsigned long long, unsigned long long>,
    std::function<bool(void*)>) {  // NOLINT(performance-unnecessary-value-param)
  heap(device).pool(true);
}

MEMPLAN_API void memplan_cuda_end_pool(int device,
                                       std::pair<unsigned long long, unsigned long long>) {
  heap(device).pool(false);
}

MEMPLAN_API void memplan_cuda_empty_cache() {
  for_each_heap([](Heap& each) { each.empty_cache(false); });
}

// ---- what Python calls; a message returned is null when all went well

MEMPLAN_API const char* memplan_cuda_load_runtime(const char* path) {
  State& s = state();
  if (s.loaded) return nullptr;
  std::string fault = find_runtime(path, s.runtime);
  if (!fault.empty()) return told(std::move(fault));
  s.loaded = true;
  return nullptr;
}

// Requests of `sizes` bytes at `offsets` (-1: not planned), in steps that begin at
// `starts`, `elastic` or not; steps [loop_begin, loop_end) repeat, and those after them
// are of other kinds. For `rank` see Heap::load.
MEMPLAN_API const char* memplan_cuda_load_plan(
    int device, unsigned rank, const std::int64_t* sizes, const std::int64_t* offsets,
    std::size_t count, const std::int64_t* starts, const bool* elastic,
    std::size_t steps, std::size_t loop_begin, std::size_t loop_end,
    std::uint64_t arena_bytes) {
  try {
    const std::uint64_t bytes = memplan::round_up(arena_bytes, kGranularity);
    memplan::Table table = memplan::table_of({.sizes = {sizes, count},
                                              .offsets = {offsets, count},
                                              .sparse = {},
                                              .starts = {starts, steps},
                                              .elastic = {elastic, steps},
                                              .loop_begin = loop_begin,
                                              .loop_end = loop_end,
                                              .arena_bytes = bytes,
                                              .online_bytes = bytes},
                                             kGranularity, kGranularity);
    if (heap(device).load(rank, std::move(table))) return nullptr;
    return told("that stream has a plan already");
  } catch (const std::exception& failure) {
    return told(failure.what());
  }
}

MEMPLAN_API void memplan_cuda_next_step() {
  for_each_heap([](Heap& each) { each.next_step(); });
}

MEMPLAN_API void memplan_cuda_pass_through(int on) {
  state().passing = on != 0;
  for_each_heap([on](Heap& each) { each.pass_through(on != 0); });
}

MEMPLAN_API void memplan_cuda_set_cache_limit(std::uint64_t bytes) {
  state().cache_limit = bytes;
  for_each_heap([bytes](Heap& each) { each.set_cache_limit(bytes); });
}

// The names of what `stats` gives, separated by commas.
MEMPLAN_API const char* memplan_cuda_stat_names() { return told(stat_names()); }

// A value for each of the names, for `device`. False for one that nothing was asked of.
MEMPLAN_API bool memplan_cuda_stats(int device, std::uint64_t* values) {
  Heap* const found = existing(device);
  if (found == nullptr) return false;
  Stats now = found->stats();
  now[kUnknownFrees] = state().unknown_frees;
  for (std::size_t i = 0; i < kStatCount; ++i) *values++ = now[i];
  memplan::PhaseCounts counts = found->counts();
  counts.warmup += counts.hot;
  for (const memplan::Counts& each : {counts.warmup, counts.hot}) {
    for (const auto& [name, counter] : memplan::kCounters) *values++ = each.*counter;
  }
  return true;
}

// `memplan_cuda_alloc` for callers without exceptions: null, and the message (cut to
// `capacity` with its end mark), where that throws; the message is "" otherwise.
MEMPLAN_API void* memplan_cuda_try_alloc(ssize_t size, int device, void* stream,
                                         char* message, std::size_t capacity) {
  message[0] = '\0';
  try {
    return memplan_cuda_alloc(size, device, stream);
  } catch (const std::exception& failure) {
    std::strncpy(message, failure.what(), capacity - 1);
    message[capacity - 1] = '\0';
    return nullptr;
  }
}

// Serves no more from arenas, and gives all that is free back to CUDA. Returns the
// number of blocks that are still in use.
MEMPLAN_API std::uint64_t memplan_cuda_shut_down() {
  std::uint64_t left = 0;
  state().passing = true;
  for_each_heap([&](Heap& each) { left += each.shut_down(); });
  return left;
}
