#include "cuda/allocator.h"

#include "alloc/recorder.h"
#include "cuda/state.h"

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

void ask(Permission permission) { state().permission.store(permission); }

void serve(bool on) { state().serving.store(on, std::memory_order_release); }

void heed(const std::atomic<int>* elsewhere) { state().elsewhere.store(elsewhere); }

bool interrupted() {
  const State& s = state();
  const std::atomic<int>* elsewhere = s.elsewhere.load(std::memory_order_relaxed);
  return s.interruptions.any() ||
         (elsewhere != nullptr && elsewhere->load(std::memory_order_relaxed) > 0);
}

void interrupt() { state().interruptions.add(); }

bool resume() { return state().interruptions.remove(); }

void next_step(std::uint8_t mark) {
  State& s = state();
  if (s.log.is_open()) s.log.append(event_of(kStep, nullptr, 0, mark));
  for (Arenas* arenas : all_arenas()) {
    const Arenas::Blocks returned = arenas->next_step();  // goes back to torch here
  }
}

void open_log(int device, unsigned rank) {
  State& s = state();
  s.log_device = device;
  s.log_rank = rank;
  s.log.open();
}

std::vector<memplan::Event> take_log() { return state().log.take(); }

}  // namespace memplan::cuda
