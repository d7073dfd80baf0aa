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

#include "cuda/runtime.h"

namespace memplan::cuda {

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

}  // namespace memplan::cuda
