// Every event of torch's CUDA allocator, told to a recording; nothing is served here.
//
// torch calls what it calls a trace tracker for each of them, whoever asks and whether or
// not its own history is kept: requests that pass by `allocate`, private pools, and the
// end of a free that waited for another stream. It does so with the device's lock held,
// so the stack, which takes the interpreter's lock, is noted before, in `allocate`.
#pragma once

#include <cstdint>
#include <string>

#include "alloc/recorder.h"

namespace memplan::cuda {

// Has torch tell of its events from now on; once is for ever, as torch has no way back.
// Needs an installed allocator (see allocator.h), and the library at `path` for which of
// its functions takes a tracker. Returns "" or what is not as expected; then nothing is
// told.
std::string attach(const char* path);
// Tells `recording` from now on; null: nobody. Blocks that are there now are none of its.
void observe(const memplan::Observation* recording);
// Of a block (kAlloc) or a segment that was there before, unless that address is known.
void tell(memplan::Observed seen);
// Events that were not told since, for want of memory for our own books.
std::uint64_t missed();
bool observing();

// While it lives, requests of the calling thread bear the stack it was made with.
class Asking {
 public:
  Asking();
  ~Asking();
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
};

// The fork's other side, and what comes before it; see allocator.cpp.
void lock_observer();
void unlock_observer();

}  // namespace memplan::cuda
