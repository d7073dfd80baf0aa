// The CUDA runtime that torch has loaded, found by name: no toolkit at build time.
#pragma once

#include <cstddef>
#include <string>

namespace memplan::cuda {

using Stream = void*;  // cudaStream_t; null is the default stream
using Event = void*;   // cudaEvent_t
using Error = int;     // cudaError_t

// Codes of cudaError_t that are told apart; they are part of CUDA's interface.
constexpr Error kSuccess = 0;
constexpr Error kNoMemory = 2;

// The functions used, as CUDA 11 to 13 declare them.
struct Runtime {
  Error (*get_device)(int*) = nullptr;
  Error (*set_device)(int) = nullptr;
  Error (*malloc)(void**, std::size_t) = nullptr;
  Error (*free)(void*) = nullptr;
  Error (*memory_info)(std::size_t* available, std::size_t* total) = nullptr;
  Error (*event_create)(Event*, unsigned flags) = nullptr;
  Error (*event_destroy)(Event) = nullptr;
  Error (*event_record)(Event, Stream) = nullptr;
  Error (*event_query)(Event) = nullptr;
  Error (*event_synchronize)(Event) = nullptr;
  Error (*device_synchronize)() = nullptr;
  Error (*is_capturing)(Stream, int* status) = nullptr;
  Error (*last_error)() = nullptr;  // and clears it
  const char* (*error_string)(Error) = nullptr;
};

// Fills `runtime` from the library at `path`, which must be loaded already: a second
// copy would have streams and memory of its own. Returns "" or what is wrong.
std::string find_runtime(const char* path, Runtime& runtime);

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
