// torch's native CUDA allocator, as far as memplan needs to know it.
//
// No torch header is included and no torch library is linked: what is used is looked up
// in the libc10_cuda.so that torch has loaded. The allocator is one object; its virtual
// table is read, and copied, but of its slots only the first is taken for known:
// c10::Allocator::allocate, as `alloc/c10.h` mirrors it. Where other functions lie, each
// version of torch has it otherwise: `Slots` finds out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace memplan::cuda {

// ---- the CUDA runtime's functions that are needed, found by name: no toolkit at build time

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

// Makes `device` the calling thread's current one, and the old one again at the end.
class DeviceGuard {
 public:
  DeviceGuard(const Runtime& runtime, int device) : runtime_(runtime) {
    if (runtime_.get_device(&before_) != kSuccess || before_ == device) return;
    changed_ = runtime_.set_device(device) == kSuccess;
  }
  ~DeviceGuard() {
    if (changed_) runtime_.set_device(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const Runtime& runtime_;
  int before_ = 0;
  bool changed_ = false;
};

// ---- the allocator

// c10::cuda::CUDAStream: a c10::Device, and the stream's number, 0 for the default one.
// By value it goes in two registers, as these do.
struct StreamValue {
  std::uint64_t device;
  std::int64_t id;
};

struct Torch {
  void** object = nullptr;        // the allocator; its first word is its virtual table
  void* const* table = nullptr;   // torch's own
  std::size_t slots = 0;          // functions in it
  Error (*get_device)(std::int8_t*) = nullptr;
  StreamValue (*current_stream)(std::int8_t device) = nullptr;
  Stream (*stream_handle)(const StreamValue*) = nullptr;
  Runtime runtime;
};

// Whether a loaded library has code at `address`.
bool is_code(const void* address);

constexpr std::size_t kAllocateSlot = 2;  // after the two destructors

// Finds the allocator in the library at `path`, which must be loaded already, and checks
// that it is the native one and looks as expected; changes nothing. Returns "" or what
// does not hold.
std::string find_torch(const char* path, Torch& torch);

// A copy of the allocator's virtual table, put in its place, some of whose functions are
// exchanged.
class Slots {
 public:
  // Puts the copy in place, with no function exchanged. It lives for ever.
  explicit Slots(const Torch& torch);

  // torch's own function there.
  void* native(std::size_t slot) const { return torch_.table[slot]; }
  // From now on `function` is called there.
  void exchange(std::size_t slot, void* function);

  // Until `stop_watching`, calls of this slot are counted on their way.
  void watch(std::size_t slot);
  // How many came.
  std::size_t stop_watching();

 private:
  const Torch& torch_;
  std::vector<void*> copy_;  // two words about the type, and then the functions
  std::size_t watched_ = 0;
  void* before_ = nullptr;
};

}  // namespace memplan::cuda
