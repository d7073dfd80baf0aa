// The state of what stands in the slots of torch's allocator; there is one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "alloc/eventlog.h"
#include "alloc/interruptions.h"
#include "cuda/allocator.h"
#include "cuda/slots.h"

namespace memplan::cuda {

constexpr std::int8_t kCuda = 1;  // c10::DeviceType

using Allocate = c10::DataPtr (*)(void* self, std::size_t bytes);

struct State {
  std::mutex mutex;  // of preparing, and of making Arenas
  Torch torch;
  std::atomic<Slots*> slots = nullptr;
  Allocate allocate = nullptr;  // torch's own
  // torch's own functions in the slots that we took, by role.
  std::array<std::array<void*, kMostOfARole>, static_cast<int>(Role::kRoles)> native = {};
  std::array<std::size_t, static_cast<int>(Role::kRoles)> taken = {};
  std::atomic<bool> installed = false;

  std::array<std::atomic<Arenas*>, kMaxDevices> devices = {};
  std::atomic<bool> serving = false;
  std::atomic<Permission> permission = nullptr;
  Interruptions interruptions;
  std::atomic<const std::atomic<int>*> elsewhere = nullptr;  // the CPU's, too
  // torch's deleter of its own blocks, once it is known.
  std::atomic<c10::Deleter> native_delete = nullptr;

  EventLog log;
  std::atomic<int> log_device = -1;
  std::atomic<unsigned> log_rank = 0;
};

State& state();
// Whether requests are to pass by, here or on the CPU.
bool interrupted();
// The device's arenas if they were made, or null.
Arenas* existing(int device);

// What is put into the first slot, and into the `which`-th one that is taken for a role.
void* allocate_hook();
void* hook_of(Role role, std::size_t which);

}  // namespace memplan::cuda
