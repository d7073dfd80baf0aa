// What became of a program's requests.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

namespace memplan {

struct Counts {
  std::uint64_t requests = 0;
  std::uint64_t planned = 0;    // at the planned offset
  std::uint64_t unplanned = 0;  // left to the default allocator, as planned
  std::uint64_t conflicts = 0;  // the planned range was taken
  std::uint64_t online = 0;     // departures, placed in the arena's free space
  std::uint64_t fallback = 0;   // departures, served by the default allocator
  std::uint64_t online_bytes = 0;
  std::uint64_t fallback_bytes = 0;
};

// Each counter with its name, in the order in which they are told.
constexpr std::array<std::pair<const char*, std::uint64_t Counts::*>, 8> kCounters = {{
    {"requests", &Counts::requests},
    {"planned", &Counts::planned},
    {"unplanned", &Counts::unplanned},
    {"conflicts", &Counts::conflicts},
    {"online", &Counts::online},
    {"fallback", &Counts::fallback},
    {"online_bytes", &Counts::online_bytes},
    {"fallback_bytes", &Counts::fallback_bytes},
}};

inline Counts& operator+=(Counts& sum, const Counts& one) {
  for (const auto& [name, counter] : kCounters) sum.*counter += one.*counter;
  return sum;
}

// Of the warm-up steps, and of all others.
struct PhaseCounts {
  Counts warmup;
  Counts hot;

  Counts& of(bool looped) { return looped ? hot : warmup; }
};

inline PhaseCounts& operator+=(PhaseCounts& sum, const PhaseCounts& one) {
  sum.warmup += one.warmup;
  sum.hot += one.hot;
  return sum;
}

}  // namespace memplan
