// Python call stacks, interned.
#pragma once

#include <cstdint>
#include <string>

#include "alloc/journal.h"

namespace memplan {

// Forgets the stacks seen so far. Frames at and below the first one whose file is
// `runner` are left out: they are memplan's own.
void reset_stacks(std::string runner);

// The calling thread's stack, innermost call first, as an index into the journal's
// table; -1 where no Python runs. Takes the GIL.
std::int32_t capture_stack(Journal& journal);

}  // namespace memplan
