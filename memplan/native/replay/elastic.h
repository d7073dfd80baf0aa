// What is learnt of an elastic step while it comes by: which of its requests vary in
// size, how large they get, and whether a step is that one at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace memplan {

// Elastic steps tell requests by their position alone, and so would take an evaluation
// for a training step whose sizes have changed. But most requests of a loop are of one
// size whatever the batch (gradients, statistics): a step in which too many of those
// differ, or which ends after more or fewer requests, is another one, a stray, of whose
// sizes nothing is kept.
class ElasticStep {
 public:
  // For a table of so many requests.
  void reset(std::size_t count) {
    usual_.assign(count, kUnknown);
    largest_.assign(count, 0);
    whole_ = 0;
    begin(0, 0);
  }
  // A step of the table's requests [first, last) begins.
  void begin(std::size_t first, std::size_t last) {
    first_ = first;
    last_ = last;
    sizes_.clear();
    differing_ = 0;
    stray_ = false;
  }
  // The next request is of `bytes`; false from where on the step is a stray.
  bool take(std::uint64_t bytes) {
    const std::size_t entry = first_ + sizes_.size();
    if (entry >= last_) stray_ = true;
    if (stray_) return false;
    sizes_.push_back(bytes);
    const std::uint64_t usual = usual_[entry];
    differing_ += usual != kUnknown && usual != kVaries && usual != bytes;
    stray_ = whole_ >= kLearning && differing_ > kFew + sizes_.size() / 8;
    return !stray_;
  }
  // Whether the step is a stray, as far as it went: at its end, if it ends here.
  bool stray() const { return stray_ || sizes_.size() != last_ - first_; }
  // The step is over.
  void end() {
    if (stray()) return;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      std::uint64_t& usual = usual_[first_ + i];
      if (usual == kUnknown) usual = sizes_[i];
      if (usual != sizes_[i]) usual = kVaries;
    }
    largest_ = largest();
    ++whole_;
  }
  // Per request of the table, the most bytes asked for in its place, strays apart.
  std::vector<std::uint64_t> largest() const {
    std::vector<std::uint64_t> result = largest_;
    if (stray()) return result;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      result[first_ + i] = std::max(result[first_ + i], sizes_[i]);
    }
    return result;
  }

 private:
  static constexpr std::uint64_t kUnknown = 0;
  static constexpr std::uint64_t kVaries = ~std::uint64_t{0};
  static constexpr std::size_t kFew = 16;  // may differ in any step

  // Steps that came by whole, before it is held for known what does not vary.
  static constexpr std::size_t kLearning = 8;

  std::size_t whole_ = 0;
  std::size_t first_ = 0;
  std::size_t last_ = 0;
  std::vector<std::uint64_t> sizes_;  // of this step's requests so far
  std::size_t differing_ = 0;         // of them, those of another size than ever before
  bool stray_ = false;
  std::vector<std::uint64_t> usual_;  // per request, its size where that never changed
  std::vector<std::uint64_t> largest_;
};

}  // namespace memplan
