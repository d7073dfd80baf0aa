// Arguments that are checked where they come in.
#pragma once

#include <stdexcept>

namespace memplan {

/// Throws std::invalid_argument(what) unless the condition holds.
inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace memplan
