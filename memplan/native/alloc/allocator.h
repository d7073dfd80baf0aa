// What becomes of each request that torch makes for CPU memory, and of each block that it
// frees.
#pragma once

#include "alloc/c10.h"

namespace memplan {

// The allocator that torch is given; never destroyed, since tensors carry its deleter.
c10::Allocator& shim();

}  // namespace memplan
