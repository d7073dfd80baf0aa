// What stands in the slots of torch's native CUDA allocator.
//
// Put there once, and never removed: tensors carry our deleter to the end of the process.
// Nothing here is ever destroyed, for the same reason.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "alloc/serving.h"
#include "cuda/arenas.h"

namespace memplan::cuda {

constexpr int kMaxDevices = 64;

// Functions beside `allocate` that have to be ours; where they lie is found by watching
// the slots while they are called. A call may pass through two slots, as torch has two
// of the same name.
enum class Role : int { kRecordStream, kBeginPool, kEndPool, kEmptyCache, kRoles };
constexpr std::size_t kMostOfARole = 3;

constexpr std::int8_t kCuda = 1;  // c10::DeviceType

using Allocate = c10::DataPtr (*)(void* self, std::size_t bytes);

// The state of what stands in the slots of torch's allocator; there is one.
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
  std::atomic<bool> serving = false;  // from the arenas; or torch serves all
  // While there are any, torch serves all; heeds those counted elsewhere, too: the CPU's.
  Interruptions interruptions;
  std::atomic<const std::atomic<int>*> elsewhere = nullptr;
  // torch's deleter of its own blocks, once it is known.
  std::atomic<c10::Deleter> native_delete = nullptr;

  EventLog log;  // of the stream that is `log_rank` on `log_device`
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

// Finds the allocator of the loaded library at `path` and only looks at it; or puts a
// copy of its virtual table in place, too, which still calls torch's own functions.
// Returns "" or why it cannot be done.
std::string check(const char* path);
std::string prepare(const char* path);
// From now on our function is called in the slot, too. False if there are too many.
bool take_slot(Role role, std::size_t slot);
// From now on requests come to us. Needs a slot of every role; returns "" or which lacks.
std::string install();

// The device's arenas, made when first asked for; null for a device that cannot be.
Arenas* arenas_of(int device);
// Those that are there.
std::vector<Arenas*> all_arenas();

// The program begins its next step.
void next_step(std::uint8_t mark);

}  // namespace memplan::cuda
