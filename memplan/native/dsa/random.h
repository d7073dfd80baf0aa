// Chance that is the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memplan::dsa {

/// splitmix64: small, fast, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  double uniform();  // in [0, 1)
  double normal();
  std::size_t below(std::size_t count);

 private:
  std::uint64_t state_;
};

}  // namespace memplan::dsa
