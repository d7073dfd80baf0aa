#include "alloc/scratch.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>

namespace memplan {
namespace {

// Blocks from `mapped` bytes on are mapped one by one, and twice as much may stay free at
// the heap's end: as glibc's own thresholds relate, which move up to the first of these.
constexpr std::uint64_t kMostMapped = 32 << 20, kLeastMapped = 128 << 10;

}  // namespace

void Scratch::look_after(Replay& replay) {
  std::uint64_t now = mapped_.load();
  std::uint64_t wanted = kMostMapped;
  if (replay.aside()) {
    if (now == kOwn) return;
    // glibc moves its own to the largest block it mapped that was freed.
    wanted = std::clamp(replay.largest_request(), kLeastMapped, kMostMapped);
  } else if (now == kMostMapped || !replay.pays()) {
    return;
  }
  if (now == wanted || !mapped_.compare_exchange_strong(now, wanted)) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(wanted));
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(2 * wanted));
  if (wanted < now) hand_back();
}

void Scratch::hand_back() { malloc_trim(0); }

}  // namespace memplan
