// Several rankings of one problem, searched in turn on all cores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsa/exact_model.h"
#include "stop_sign.h"

namespace memplan::dsa {

enum class Verdict : std::uint8_t { kOpen, kFits, kNever };

/// One search per ranking, each with its own stack and memo; none starts over.
///
/// They go on in rounds, in each of which every search makes the same number of
/// placements. What comes out depends on the number of rounds alone, and not on the
/// number of threads or on their timing: of several that end in one round, the first
/// in the list counts.
class Portfolio {
 public:
  /// capacity: in the unit of the instance's sizes.
  Portfolio(const Instance& instance, const std::vector<std::string>& orders,
            std::int64_t capacity);
  ~Portfolio();

  /// At most `rounds` of `slice` placements, fewer if a search ends or the sign is up.
  Verdict run(std::int64_t rounds, std::int64_t slice, int threads,
              const StopSign& stop);

  /// After Verdict::kFits: an offset per buffer.
  std::vector<std::int64_t> offsets() const;

  /// Placements of all searches together.
  std::int64_t nodes() const;

  class Lane;

 private:
  bool end_round();

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Verdict> verdicts_;
  int winner_ = -1;  // the ranking whose search ended, or -1
};

}  // namespace memplan::dsa
