#include "cuda/heap.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cuda/failures.h"

namespace memplan::cuda {
namespace {

std::string in_units(std::uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  char text[32];
  if (bytes >= (1ull << 30)) {
    std::snprintf(text, sizeof text, "%.2f GiB", value / (1 << 30));
  } else if (bytes >= (1ull << 20)) {
    std::snprintf(text, sizeof text, "%.2f MiB", value / (1 << 20));
  } else {
    std::snprintf(text, sizeof text, "%.2f KiB", value / (1 << 10));
  }
  return text;
}

}  // namespace

bool Heap::load(unsigned rank, Table&& table) {
  Lock lock(mutex_);
  const std::uint64_t bytes = table.arena_bytes;
  return arenas_.try_emplace(rank, std::move(table), bytes).second;
}

void Heap::refuse_capture(Stream stream, std::uint64_t bytes) {
  int status = 0;
  const Error error = runtime_.is_capturing(stream, &status);
  if (error == kSuccess && status == 0) return;
  std::string why = "the stream is under CUDA graph capture";
  if (error != kSuccess) {
    runtime_.last_error();
    why = std::string("whether it is under graph capture CUDA will not tell: ") +
          runtime_.error_string(error);
  }
  Lock lock(mutex_);
  ++stats_[kRefusedCaptures];
  throw CudaError("memplan: a request of " + std::to_string(bytes) +
                  " bytes cannot be served under a plan (" + why +
                  "); run without CUDA graphs, or without the plan");
}

void* Heap::allocate(std::uint64_t requested, Stream stream) {
  if (requested == 0) return nullptr;
  refuse_capture(stream, requested);
  if (requested > (std::uint64_t{1} << 62)) out_of_memory(requested);
  const std::uint64_t bytes = round_up(requested, kGranularity);
  Lock lock(mutex_);
  collect();
  Planned* arena = arena_of(stream, lock);
  if (void* address = from_plan(arena, bytes, stream)) return address;
  if (const auto cached = cache_.take(stream, bytes)) {
    stats_.shrink(kCached, cached->size);
    return hand_out(cached->address, cached->size, stream, nullptr);
  }
  if (void* address = from_cuda(bytes, lock)) {
    return hand_out(address, bytes, stream, nullptr);
  }
  if (void* address = last_resort(arena, bytes, stream)) return address;
  lock.unlock();
  out_of_memory(requested);
}

Heap::Planned* Heap::arena_of(Stream stream, Lock& lock) {
  const auto next = static_cast<unsigned>(ranks_.size());
  const unsigned rank = ranks_.emplace(stream, next).first->second;
  const auto found = arenas_.find(rank);
  if (found == arenas_.end()) return nullptr;
  Planned& arena = found->second;
  if (arena.state == Arena::kUnmade && serving_) make_arena(arena, lock);
  return arena.state == Arena::kReady ? &arena : nullptr;
}

void Heap::make_arena(Planned& arena, Lock& lock) {
  const std::uint64_t bytes = arena.server.ranges().size();
  if (bytes == 0) {
    arena.state = Arena::kReady;  // a plan of requests that are all left to CUDA
    return;
  }
  arena.state = Arena::kInMaking;
  try {
    arena.base = static_cast<char*>(from_cuda(bytes, lock));
  } catch (const CudaError&) {
    // The request at hand will meet the same failure, and tell of it.
  }
  arena.state = arena.base == nullptr ? Arena::kFailed : Arena::kReady;
  if (arena.base != nullptr) stats_[kArenas] += bytes;
}

// A block of the arena, or null: then the request is CUDA's to serve.
void* Heap::from_plan(Planned* arena, std::uint64_t bytes, Stream stream) {
  if (!serving_) return nullptr;
  if (arena != nullptr) {
    const std::int64_t offset = arena->server.serve(bytes).offset;
    return offset < 0 ? nullptr : hand_out(arena->base + offset, bytes, stream, arena);
  }
  if (arenas_.count(ranks_.at(stream)) == 0) ++stats_[kOtherStream];
  const bool looped = std::any_of(arenas_.begin(), arenas_.end(), [](const auto& entry) {
    return entry.second.server.matcher().looped();
  });
  Counts& counts = without_arena_.of(looped);
  ++counts.requests;
  ++counts.fallback;
  counts.fallback_bytes += bytes;
  return nullptr;
}

// CUDA has no more: better a place in the arena than none.
void* Heap::last_resort(Planned* arena, std::uint64_t bytes, Stream stream) {
  if (arena == nullptr) return nullptr;
  Ranges& ranges = arena->server.ranges();
  const std::int64_t free = ranges.take_anywhere(bytes, ranges.size());
  if (free < 0) return nullptr;
  ++stats_[kRetries];
  return hand_out(arena->base + free, bytes, stream, arena);
}

void* Heap::hand_out(void* address, std::uint64_t size, Stream stream, Planned* arena) {
  try {
    blocks_.emplace(address, Block{size, stream, arena, {}, false});
  } catch (...) {  // no memory for our own books: nothing may be lost by it
    if (arena != nullptr) {
      arena->server.ranges().give_back(
          static_cast<std::uint64_t>(static_cast<char*>(address) - arena->base));
    } else if (runtime_.free(address) == kSuccess) {
      stats_.shrink(kReserved, size);
    }
    throw;
  }
  stats_.grow(kAllocated, size);
  stats_.grow(kActive, size);
  return address;
}

// Memory of CUDA's own, or null if there is none; `lock` is held again at the end.
void* Heap::from_cuda(std::uint64_t bytes, Lock& lock) {
  lock.unlock();
  void* address = nullptr;
  Error error = kSuccess;
  const auto attempt = [&] {
    DeviceGuard guard(runtime_, device_);
    error = runtime_.malloc(&address, bytes);
    if (error == kSuccess) return true;
    runtime_.last_error();
    address = nullptr;
    return false;
  };
  bool served = attempt();
  lock.lock();
  if (!served) {
    ++stats_[kMallocFailures];
    if (error == kNoMemory && !capturing()) {
      drain(lock);
      give_back(cache_.evict(0), lock);
      lock.unlock();
      served = attempt();
      lock.lock();
      ++stats_[served ? kRetries : kMallocFailures];
    }
  }
  if (served) {
    stats_.grow(kReserved, bytes);
  } else if (error != kNoMemory) {
    throw CudaError("CUDA error: " + std::string(runtime_.error_string(error)) + " (" +
                    in_units(bytes) + " asked of GPU " + std::to_string(device_) + ")");
  }
  return address;
}

void Heap::out_of_memory(std::uint64_t bytes) {
  std::size_t available = 0, total = 0;
  {
    DeviceGuard guard(runtime_, device_);
    if (runtime_.memory_info(&available, &total) != kSuccess) runtime_.last_error();
  }
  Lock lock(mutex_);
  ++stats_[kOutOfMemory];
  const Stats now = stats_;
  throw OutOfMemoryError(
      "CUDA out of memory. Tried to allocate " + in_units(bytes) + ". GPU " +
      std::to_string(device_) + " has a total capacity of " + in_units(total) +
      " of which " + in_units(available) + " is free. Under the plan, " +
      in_units(now[kAllocated]) + " is allocated of " + in_units(now[kReserved]) +
      " reserved, and " + in_units(now[kArenas]) + " of that is the plan's own.");
}

bool Heap::record_stream(void* address, Stream stream) {
  Lock lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end() || found->second.freed) return false;
  Block& block = found->second;
  const auto known = std::find(block.users.begin(), block.users.end(), stream);
  if (stream != block.stream && known == block.users.end()) block.users.push_back(stream);
  return true;
}

void Heap::next_step() {
  Lock lock(mutex_);
  for (auto& [rank, arena] : arenas_) arena.server.next_step();
}

void Heap::pass_through(bool on) {
  Lock lock(mutex_);
  serving_ = !on;
}

void Heap::pool(bool open) {
  Lock lock(mutex_);
  if (open) {
    ++pools_;
  } else if (pools_ > 0) {
    --pools_;
  }
}

void Heap::set_cache_limit(std::uint64_t bytes) {
  Lock lock(mutex_);
  cache_limit_ = bytes;
}

Stats Heap::stats() {
  Lock lock(mutex_);
  Stats now = stats_;
  now[kPending] = waiting_.blocks();
  now[kEventFailures] = waiting_.failures();
  return now;
}

PhaseCounts Heap::counts() {
  Lock lock(mutex_);
  PhaseCounts sum = without_arena_;
  for (const auto& [rank, arena] : arenas_) sum += arena.server.counts();
  return sum;
}

}  // namespace memplan::cuda
