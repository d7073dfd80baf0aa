// A partial packing that grows from the bottom up, and shrinks again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/exact_model.h"

namespace memplan::dsa {

/// Which buffers are placed where, and the least offset that is left for the others.
///
/// The least offset of a waiting buffer is the highest top of the placed ones that
/// overlap it in time, rounded up to its alignment; a fixed buffer's is its own.
/// Every change is logged, so that `undo` can take it back.
template <class V>
class State {
 public:
  explicit State(const Model<V>& model);

  /// Places buffer k at its least offset. False if some waiting buffer then cannot lie
  /// beneath `capacity`, or not at its fixed offset; `undo` all the same.
  bool place(std::int32_t k, V capacity);

  /// A moment to come back to.
  std::size_t mark() const { return log_.size(); }
  void undo(std::size_t mark);

  /// Notes that buffer k was tried at its least offset, in vain: it does not lie there.
  /// What is alike and waits does not, either.
  void bar(std::int32_t k);

  bool waits(std::int32_t k) const { return waits_[k]; }
  bool barred(std::int32_t k) const { return barred_[k] == least_[k]; }
  const V* least() const { return least_.data(); }
  V least(std::int32_t k) const { return least_[k]; }
  V top(std::int32_t k) const { return least_[k] + model_->size[k]; }

  /// Per section: the highest top of what is placed, and the bytes that wait.
  const V* floor() const { return floor_.data(); }
  const V* remaining() const { return remaining_.data(); }

  /// Waiting buffers that are alive both before and after the beginning of a section.
  std::int32_t crossing(std::int32_t section) const { return crossing_[section]; }
  std::int32_t wrapping() const { return crossing_[0]; }

 private:
  struct Change {
    std::int32_t what;  // buffer k's least offset, ~s: floor, kPlaced, kBarred + k
    V before;           // or which buffer was placed
  };
  static constexpr std::int32_t kPlaced = std::int32_t{1} << 30;
  static constexpr std::int32_t kBarred = std::int32_t{1} << 29;

  void cover(std::int32_t start, std::int32_t end, V top, V size);
  void uncover(std::int32_t k);
  void cross(std::int32_t k, std::int32_t by);
  void set(V& value, V now, std::int32_t what) {
    log_.push_back({what, value});
    value = now;
  }

  const Model<V>* model_;
  std::vector<V> least_, floor_, remaining_;
  std::vector<V> barred_;  // the least offset at which it was tried last, or -1
  std::vector<std::int32_t> crossing_;
  std::vector<std::uint8_t> waits_;
  std::vector<Change> log_;
};

extern template class State<std::int32_t>;
extern template class State<std::int64_t>;

}  // namespace memplan::dsa
