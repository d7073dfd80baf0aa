#include "cuda/slots.h"

#include <cstdint>

namespace memplan::cuda {
namespace {

using Any = std::uintptr_t (*)(std::uintptr_t, std::uintptr_t, std::uintptr_t,
                               std::uintptr_t, std::uintptr_t, std::uintptr_t);

std::atomic<Any> watched_function = nullptr;
std::atomic<std::size_t> calls = 0;

// Stands for a function whose parameters are not known: passes on what the registers
// hold, as its last act, so that what else was passed stays where it is.
std::uintptr_t on_watched(std::uintptr_t a, std::uintptr_t b, std::uintptr_t c,
                          std::uintptr_t d, std::uintptr_t e, std::uintptr_t f) {
  calls.fetch_add(1, std::memory_order_relaxed);
  return watched_function.load(std::memory_order_relaxed)(a, b, c, d, e, f);
}

}  // namespace

Slots::Slots(const Torch& torch)
    : torch_(torch), copy_(torch.table - 2, torch.table + torch.slots) {
  __atomic_store_n(torch_.object, static_cast<void*>(copy_.data() + 2), __ATOMIC_RELEASE);
}

void Slots::exchange(std::size_t slot, void* function) {
  __atomic_store_n(&copy_[2 + slot], function, __ATOMIC_RELEASE);
}

void Slots::watch(std::size_t slot) {
  watched_ = slot;
  before_ = copy_[2 + slot];
  watched_function.store(reinterpret_cast<Any>(before_));
  calls.store(0);
  exchange(slot, reinterpret_cast<void*>(&on_watched));
}

std::size_t Slots::stop_watching() {
  exchange(watched_, before_);
  return calls.load();
}

}  // namespace memplan::cuda
