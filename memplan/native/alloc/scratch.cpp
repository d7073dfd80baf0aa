#include "alloc/scratch.h"

#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>

namespace memplan {
namespace {

// Blocks from `mapped` bytes on are mapped one by one, and twice as much may stay free at
// the heap's end: as glibc's own thresholds relate, which move up to the first of these.
constexpr std::uint64_t kMostMapped = 32 << 20, kLeastMapped = 128 << 10;

void set_thresholds(std::uint64_t mapped) {
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(mapped));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(2 * mapped));
}

// What serves large requests by itself has its own way to keep pages.
bool others_serve() {
  return dlsym(RTLD_DEFAULT, "memplan_malloc_counts") != nullptr;
}

}  // namespace

void Scratch::look_after(Replay& replay) {
  if (replay.aside()) {
    Thresholds kept = Thresholds::kScratch;
    if (!thresholds_.compare_exchange_strong(kept, Thresholds::kTensors)) return;
    if (others_serve()) return;
    // glibc moves its own to the largest block it mapped that was freed.
    set_thresholds(std::clamp(replay.largest_request(), kLeastMapped, kMostMapped));
    hand_back();
  } else if (thresholds_.load() != Thresholds::kScratch && replay.pays()) {
    if (thresholds_.exchange(Thresholds::kScratch) == Thresholds::kScratch) return;
    if (!others_serve()) set_thresholds(kMostMapped);
  }
}

void Scratch::hand_back() { malloc_trim(0); }

}  // namespace memplan
