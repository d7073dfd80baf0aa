#include "cuda/allocator.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>

#include "alloc/recorder.h"
#include "cuda/observer.h"

namespace memplan::cuda {

State& state() {
  static State* const the_state = new State;
  return *the_state;
}

Arenas* existing(int device) {
  if (device < 0 || device >= kMaxDevices) return nullptr;
  return state().devices[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
}

Arenas* arenas_of(int device) {
  if (Arenas* found = existing(device)) return found;
  if (device < 0 || device >= kMaxDevices) return nullptr;
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (Arenas* found = existing(device)) return found;
  auto* made = new Arenas(s.torch.runtime, device);
  s.devices[static_cast<std::size_t>(device)].store(made, std::memory_order_release);
  return made;
}

std::vector<Arenas*> all_arenas() {
  std::vector<Arenas*> all;
  for (int device = 0; device < kMaxDevices; ++device) {
    if (Arenas* found = existing(device)) all.push_back(found);
  }
  return all;
}

bool interrupted() {
  const State& s = state();
  const std::atomic<int>* elsewhere = s.elsewhere.load(std::memory_order_relaxed);
  return s.interruptions.any() ||
         (elsewhere != nullptr && elsewhere->load(std::memory_order_relaxed) > 0);
}

void next_step(std::uint8_t mark) {
  State& s = state();
  if (s.log.is_open()) s.log.append(event_of(kStep, nullptr, 0, mark));
  for (Arenas* arenas : all_arenas()) {
    const Arenas::Blocks returned = arenas->next_step();  // goes back to torch here
  }
}

// ---- putting our functions into the slots, and a forked child's going without

namespace {

// It shares the parent's tensors' addresses, and no device: whatever it asks torch for,
// torch answers, and what it frees it frees in its own copy only.
void before_fork() {
  State& s = state();
  s.mutex.lock();
  lock_observer();
  s.log.lock();
  for (Arenas* arenas : all_arenas()) arenas->lock();
}

void in_parent() {
  State& s = state();
  for (Arenas* arenas : all_arenas()) arenas->unlock();
  s.log.unlock();
  unlock_observer();
  s.mutex.unlock();
}

void in_child() {
  State& s = state();
  s.serving.store(false);
  in_parent();
  observe(nullptr);
  s.log.take();
}

// As large as what `allocate` returns may be; returned as a c10::DataPtr is, in the
// caller's memory.
struct Room {
  Room() = default;
  Room(const Room&) = delete;
  ~Room() {}
  std::array<std::byte, 128> bytes;
};

// Has torch's own `allocate` make a block, and looks at what it wrote. Returns "" or what
// is not as mirrored; the block is lost then, since nobody knows how to free it.
std::string try_layout(const State& s) {
  constexpr std::byte kUntouched{0xA5};
  using AllocateRoom = Room (*)(void* self, std::size_t bytes);
  alignas(Room) std::byte memory[sizeof(Room)];
  std::memset(memory, static_cast<int>(kUntouched), sizeof memory);
  const auto allocate = reinterpret_cast<AllocateRoom>(s.torch.table[kAllocateSlot]);
  void* self = static_cast<void*>(s.torch.object);
  new (memory) Room(allocate(self, kGranularity));
  auto* block = std::launder(reinterpret_cast<c10::DataPtr*>(memory));
  const bool larger = std::any_of(memory + sizeof(c10::DataPtr), std::end(memory),
                                  [](std::byte each) { return each != kUntouched; });
  if (larger) return "what its allocate returns is larger than a c10::DataPtr";
  const auto deleter = reinterpret_cast<const void*>(block->context.get_deleter());
  if (block->data == nullptr || block->context.get() != block->data ||
      block->device_type != kCuda || !is_code(deleter)) {
    return "what its allocate returns is no c10::DataPtr of CUDA's";
  }
  block->~DataPtr();
  return {};
}

}  // namespace

std::string check(const char* path) {
  Torch torch;
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.slots == nullptr ? find_torch(path, torch) : std::string();
}

std::string prepare(const char* path) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.slots != nullptr) return {};
  if (std::string fault = find_torch(path, s.torch); !fault.empty()) return fault;
  s.allocate = reinterpret_cast<Allocate>(s.torch.table[kAllocateSlot]);
  s.slots = new Slots(s.torch);
  pthread_atfork(&before_fork, &in_parent, &in_child);
  return {};
}

bool take_slot(Role role, std::size_t slot) {
  State& s = state();
  const auto of = static_cast<std::size_t>(role);
  const std::size_t which = s.taken[of];
  if (s.installed || which == kMostOfARole || slot >= s.torch.slots) return false;
  s.native[of][which] = s.slots.load()->native(slot);
  ++s.taken[of];
  s.slots.load()->exchange(slot, hook_of(role, which));
  return true;
}

std::string install() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  if (s.slots == nullptr) return "its allocator was not looked for yet";
  static constexpr std::array<const char*, static_cast<int>(Role::kRoles)> kNames = {
      "recordStream", "beginAllocateToPool", "endAllocateToPool", "emptyCache"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (s.taken[i] == 0) return std::string("its ") + kNames[i] + " was not found";
  }
  if (!s.installed) {
    // It calls torch's allocator, which may take the interpreter's lock: whoever has
    // that may be about to fork, and wait for ours.
    lock.unlock();
    if (std::string fault = try_layout(s); !fault.empty()) return fault;
    lock.lock();
    if (s.installed) return {};
    s.slots.load()->exchange(kAllocateSlot, allocate_hook());
  }
  s.installed = true;
  return {};
}

}  // namespace memplan::cuda
