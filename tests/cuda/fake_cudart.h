// What tests may do to the fake CUDA runtime, beside calling CUDA's own functions.
#pragma once

#include <cstddef>
#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

enum FakeFunction {
  kMalloc,
  kFree,
  kEventCreate,
  kEventRecord,
  kEventQuery,
  kEventSynchronize,
  kDeviceSynchronize,
  kFunctions,
};

struct FakeCounts {
  std::uint64_t live_bytes;          // taken by cudaMalloc and not given back
  std::uint64_t overwritten;         // checks that found another block's token
  std::uint64_t wild_accesses;       // work on memory that was not allocated then
  std::uint64_t freed_in_use;        // cudaFree while work on the block was queued
  std::uint64_t bad_frees;           // cudaFree of what is no block
  std::uint64_t capture_violations;  // calls that a capture forbids
  std::uint64_t injected;            // failures injected so far
  std::uint64_t calls[kFunctions];
};

API void* fake_stream(int device);
API void fake_cap(int device, std::uint64_t bytes);
API void fake_capture(void* stream, int on);
API void fake_fail(int function, long skip, long count, int code);
API void fake_fill(void* stream, void* address, std::uint64_t bytes, std::uint32_t token);
API void fake_check(void* stream, void* address, std::uint64_t bytes, std::uint32_t token);
API void fake_wait(void* waiter, void* stream);
API std::uint64_t fake_advance(void* stream, std::uint64_t count);
API void fake_run_all();
API void fake_counts(FakeCounts* counts);
