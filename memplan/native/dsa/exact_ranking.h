// In which order the exact search tries buffers that begin at the same offset.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsa/exact_model.h"
#include "dsa/exact_state.h"

namespace memplan::dsa {

/// Ranks waiting buffers by up to four letters, all descending, ties by index:
/// W lifetime, A lifetime x size, T largest total of waiting bytes in a section lived
/// through, F the same with what is placed there, C sections, Z size, O number of
/// waiting buffers that overlap. T, F and O change as buffers are placed.
template <class V>
class Ranking {
 public:
  /// The model must outlive the ranking. Throws std::invalid_argument for other
  /// letters, or more of them.
  Ranking(const Model<V>& model, const std::string& letters);

  /// Ranks by other letters from now on, and by what is measured times a factor for
  /// each buffer, of that deviation about 1: chance, the same for the same seed.
  void change(const std::string& letters, std::uint64_t seed, double deviation);

  /// Sorts some of the buffers that wait, by what waits now.
  void sort(std::span<std::int32_t> waiting, const State<V>& state);

 private:
  static constexpr std::size_t kMost = 4;
  using Key = std::array<double, kMost>;

  double now(char letter, std::int32_t k, const State<V>& state) const;

  const Model<V>* model_;
  std::string letters_;
  std::vector<Key> keys_;        // by buffer
  std::vector<double> factors_;  // by buffer
};

extern template class Ranking<std::int32_t>;
extern template class Ranking<std::int64_t>;

}  // namespace memplan::dsa
