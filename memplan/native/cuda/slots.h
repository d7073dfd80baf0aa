// A copy of the allocator's virtual table, put in its place, some of whose functions are
// exchanged.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/torch.h"

namespace memplan::cuda {

class Slots {
 public:
  // Puts the copy in place, with no function exchanged. It lives for ever.
  explicit Slots(const Torch& torch);

  std::size_t count() const { return torch_.slots; }
  // torch's own function there.
  void* native(std::size_t slot) const { return torch_.table[slot]; }
  // From now on `function` is called there.
  void exchange(std::size_t slot, void* function);

  // Until `stop_watching`, calls of this slot are counted on their way.
  void watch(std::size_t slot);
  // How many came.
  std::size_t stop_watching();

 private:
  const Torch& torch_;
  std::vector<void*> copy_;  // two words about the type, and then the functions
  std::size_t watched_ = 0;
  void* before_ = nullptr;
};

}  // namespace memplan::cuda
