// The kernels that are the same for every network, built with the package: once for
// each set of instructions. Stacks are compiled where they are met.
#include "conv_abi.h"
#include "tape.h"

// What was compiled, to be compared with the headers that lie beside the library.
extern "C" __attribute__((visibility("default"))) const char memplan_kernels_source[] =
    MEMPLAN_KERNELS_SOURCE;
