// The CUDA runtime's functions that are needed, found by name: no toolkit at build time.
#pragma once

#include <string>

namespace memplan::cuda {

using Stream = void*;  // cudaStream_t; null is the default stream
using Event = void*;   // cudaEvent_t
using Error = int;     // cudaError_t

constexpr Error kSuccess = 0;  // of cudaError_t; part of CUDA's interface

// As CUDA 11 to 13 declare them.
struct Runtime {
  Error (*get_device)(int*) = nullptr;
  Error (*set_device)(int) = nullptr;
  Error (*event_create)(Event*, unsigned flags) = nullptr;
  Error (*event_record)(Event, Stream) = nullptr;
  Error (*event_query)(Event) = nullptr;
  Error (*is_capturing)(Stream, int* status) = nullptr;
  Error (*last_error)() = nullptr;  // and clears it
};

// Fills `runtime` from what the loaded `library` (a handle of dlopen's) depends on: the
// runtime that it calls itself, whatever others are loaded beside it. Returns "" or what
// is missing.
std::string find_runtime(void* library, Runtime& runtime);

// Makes `device` the calling thread's current one, and the old one again at the end.
class DeviceGuard {
 public:
  DeviceGuard(const Runtime& runtime, int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const Runtime& runtime_;
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace memplan::cuda
