// What the allocator throws. torch turns them into RuntimeErrors of the same words.
#pragma once

#include <stdexcept>

namespace memplan::cuda {

// Its message begins as torch's own does: programs look for "out of memory" in it.
class OutOfMemoryError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A CUDA call failed, or a request came that cannot be served.
class CudaError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace memplan::cuda
