// Can what waits still be packed? Proofs that it cannot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dsa/exact_model.h"

namespace memplan::dsa {

/// The least offset and the least top among some buffers.
template <class V>
struct Lowest {
  V offset, top;
};

/// lowest_between: of `count` buffers with lifespans [start, end), those that meet the
///   lifespan [from, to): the least offset and the least offset + size; or `none`.
/// add_to_all: adds `amount` to each, and returns the largest sum.
/// two_lowest: puts `offset` of buffer `who` among the two lowest of each section.
/// highest_sum: the largest max(floor, least) + remaining where something remains.
#define MEMPLAN_EXACT_KERNELS(V)                                                       \
  Lowest<V> lowest_between(const std::int32_t* start, const std::int32_t* end,         \
                           const V* offset, const V* size, std::int32_t count,         \
                           std::int32_t from, std::int32_t to, V none);                \
  V add_to_all(V* values, std::int32_t count, V amount);                               \
  void two_lowest(V* first, V* second, V* owner, std::int32_t count, V offset, V who); \
  V highest_sum(const V* floor, const V* remaining, std::int32_t count, V least);

MEMPLAN_EXACT_KERNELS(std::int32_t)
MEMPLAN_EXACT_KERNELS(std::int64_t)
#undef MEMPLAN_EXACT_KERNELS

/// Necessary conditions on a state, for some waiting buffers in the sections
/// [first, end), after the last placement.
///
/// What is pruned is pruned for the sake of one packing that is kept: of those that
/// fit, one with the least sum of offsets. In it no buffer could be moved down alone.
template <class V>
class Bounds {
 public:
  explicit Bounds(const Model<V>& model) : model_(&model), stack_(model.sections) {
    for (auto* column : {&start_, &end_, &start_again_, &end_again_}) {
      column->resize(model.n);
    }
    offset_.resize(model.n);
    size_.resize(model.n);
    beyond_.resize(model.n);
    order_.resize(model.n);
    deadline_.resize(model.n);
    for (auto* column : {&lowest_, &second_, &owner_}) column->resize(model.sections);
    roomiest_.resize(model.sections / kBlock + 1);
    open_.resize(roomiest_.size());
  }

  /// False if the buffers certainly cannot all lie beneath `capacity`, none below
  /// `last`, nor any where it is barred.
  bool may_fit(const State<V>& state, std::span<const std::int32_t> waiting,
               std::int32_t first, std::int32_t end, V last, V capacity) {
    // What is placed in a section and what remains must fit.
    if (highest_sum(state.floor() + first, state.remaining() + first, end - first,
                    last) > capacity + model_->most_beyond) {
      return false;
    }
    return releases(state, waiting, last, capacity) &&
           lift_stranded(waiting, capacity) &&
           force(state, static_cast<std::int32_t>(waiting.size()), first, end,
                 capacity + model_->most_beyond) &&
           stacks_fit(waiting, first, end, capacity);
  }

  /// After that was true: no lower than this will the waiting buffer of that position
  /// lie.
  V offset(std::size_t position) const { return offset_[position]; }

 private:
  // The least offset of each from now on, and which were passed over.
  bool releases(const State<V>& state, std::span<const std::int32_t> waiting, V last,
                V capacity) {
    const Model<V>& model = *model_;
    stranded_.clear();
    std::int32_t position = 0;
    for (const std::int32_t k : waiting) {
      const V least = state.least(k);
      V offset = least;
      if (least < last || state.barred(k)) {
        offset = std::max(least, last);
        if (model.fixed[k] >= 0) return false;
        stranded_.push_back({position, least + model.size[k]});
      }
      if (offset > capacity + model.beyond[k] - model.size[k]) return false;
      start_[position] = model.start[k];
      end_[position] = model.end[k];
      offset_[position] = offset;
      size_[position] = model.size[k];
      beyond_[position] = model.beyond[k];
      if (model.periodic) {
        start_again_[position] = model.start_again[k];
        end_again_[position] = model.end_again[k];
      }
      ++position;
    }
    return true;
  }

  // A stranded buffer must be lifted: by one that begins beneath its top, or moving it
  // down alone would be possible. Then it lies on one, at the top of that or higher.
  bool lift_stranded(std::span<const std::int32_t> waiting, V capacity) {
    const auto count = static_cast<std::int32_t>(waiting.size());
    const V none = 2 * (capacity + model_->most_beyond) + 1;
    for (const Stranded& one : stranded_) {
      const std::int32_t at = one.position;
      const V own = offset_[at];
      offset_[at] = none;  // it does not lift itself
      const Lowest<V> lowest = lowest_neighbour(at, count, none);
      offset_[at] = std::max(own, lowest.top);
      const V highest = capacity + beyond_[at] - size_[at];
      if (lowest.offset >= one.top || offset_[at] > highest) return false;
    }
    return true;
  }

  // Something that waits in a section must lie so low that the rest can lie above. Where
  // there is but one that can, it has a deadline; whatever does not fit beneath that
  // must lie on top of it, and there may be one elsewhere that is left alone with its
  // section then. Some rounds of this, for the first ones find the most. Where one lies
  // too high to be among those that can, it is not looked at; nor is a section, after the
  // first round, where nothing that could was lifted. Both go by blocks of sections.
  bool force(const State<V>& state, std::int32_t count, std::int32_t first,
             std::int32_t end, V capacity) {
    constexpr int kRounds = 4;
    const V none = 2 * capacity + 1;
    std::fill(deadline_.begin(), deadline_.begin() + count, none);
    const std::int32_t from = first / kBlock, to = (end - 1) / kBlock + 1;
    for (std::int32_t b = from; b < to; ++b) {
      V least = none;
      const std::int32_t high = std::min(end, (b + 1) * kBlock);
      for (std::int32_t s = std::max(first, b * kBlock); s < high; ++s) {
        const V remaining = state.remaining()[s];
        least = std::min(least, remaining ? remaining : none);
      }
      roomiest_[b] = open_[b] = std::max<V>(capacity - least, -1);
    }
    for (int round = 0; round < kRounds; ++round) {
      for (std::int32_t b = from; b < to; ++b) {
        if (open_[b] < 0) continue;
        const std::int32_t low = b * kBlock;
        const std::int32_t high = std::min(model_->sections, low + kBlock);
        std::fill(lowest_.begin() + low, lowest_.begin() + high, none);
        std::fill(second_.begin() + low, second_.begin() + high, none);
      }
      for (std::int32_t i = 0; i < count; ++i) {
        lay(i, start_[i], end_[i]);
        if (model_->periodic && end_again_[i]) lay(i, 0, end_again_[i]);
      }
      if (!find_rushed(state, first, end, capacity)) return false;
      std::fill(open_.begin() + from, open_.begin() + to, V{-1});
      const std::int64_t before = lifts_;
      for (const std::int32_t at : rushed_) {
        if (!lift_off(at, count, capacity)) return false;
      }
      if (lifts_ == before) break;
    }
    return true;
  }

  // Puts one among the two lowest of the sections [start, end), where blocks are open.
  void lay(std::int32_t i, std::int32_t start, std::int32_t end) {
    const V offset = offset_[i];
    for (std::int32_t b = start / kBlock; b * kBlock < end; ++b) {
      if (offset > open_[b]) continue;
      const std::int32_t from = std::max(start, b * kBlock);
      while ((b + 1) * kBlock < end && offset <= open_[b + 1]) ++b;
      const std::int32_t count = std::min(end, (b + 1) * kBlock) - from;
      two_lowest(&lowest_[from], &second_[from], &owner_[from], count, offset,
                 static_cast<V>(i));
    }
  }

  // Those that alone can lie low enough in a section, with their deadlines; false if
  // there is a section where nothing can.
  bool find_rushed(const State<V>& state, std::int32_t first, std::int32_t end,
                   V capacity) {
    rushed_.clear();
    for (std::int32_t b = first / kBlock; b * kBlock < end; ++b) {
      if (open_[b] < 0) continue;
      const std::int32_t high = std::min(end, (b + 1) * kBlock);
      for (std::int32_t s = std::max(first, b * kBlock); s < high; ++s) {
        const V remaining = state.remaining()[s];
        if (remaining == 0 || second_[s] <= capacity - remaining) continue;
        if (lowest_[s] > capacity - remaining) return false;
        const auto at = static_cast<std::int32_t>(owner_[s]);
        if (deadline_[at] <= capacity - remaining) continue;
        if (rushed_.empty() || rushed_.back() != at) rushed_.push_back(at);
        deadline_[at] = capacity - remaining;
      }
    }
    return true;
  }

  // What overlaps the one with a deadline, and cannot lie beneath it, lies above.
  bool lift_off(std::int32_t at, std::int32_t count, V capacity) {
    const V top = offset_[at] + size_[at], deadline = deadline_[at];
    const auto meets = [&](const auto& starts, const auto& ends, std::int32_t i) {
      return (starts[i] < end_[at] && start_[at] < ends[i]) ||
             (model_->periodic && starts[i] < end_again_[at] &&
              start_again_[at] < ends[i]);
    };
    for (std::int32_t i = 0; i < count; ++i) {
      if (offset_[i] >= top || offset_[i] + size_[i] <= deadline || i == at) continue;
      if (!meets(start_, end_, i) &&
          !(model_->periodic && meets(start_again_, end_again_, i))) {
        continue;
      }
      if (top > capacity - size_[i] || top > deadline_[i]) return false;
      reopen(start_[i], end_[i], offset_[i]);
      if (model_->periodic) reopen(0, end_again_[i], offset_[i]);
      offset_[i] = top;
      ++lifts_;
    }
    return true;
  }

  // Looks at the sections [start, end) in the next round, where one at that offset
  // was among those that can lie low enough.
  void reopen(std::int32_t start, std::int32_t end, V offset) {
    for (std::int32_t b = start / kBlock; b * kBlock < end; ++b) {
      if (offset <= roomiest_[b]) open_[b] = roomiest_[b];
    }
  }

  Lowest<V> lowest_neighbour(std::int32_t at, std::int32_t count, V none) const {
    const auto between = [&](const auto& starts, const auto& ends, auto from, auto to) {
      return lowest_between(starts.data(), ends.data(), offset_.data(), size_.data(),
                            count, from, to, none);
    };
    Lowest<V> lowest = between(start_, end_, start_[at], end_[at]);
    if (!model_->periodic) return lowest;
    const auto add = [&](const Lowest<V>& other) {
      lowest.offset = std::min(lowest.offset, other.offset);
      lowest.top = std::min(lowest.top, other.top);
    };
    add(between(start_again_, end_again_, start_[at], end_[at]));
    add(between(start_, end_, start_again_[at], end_again_[at]));
    add(between(start_again_, end_again_, start_again_[at], end_again_[at]));
    return lowest;
  }

  // In each section, the buffers from any least offset up must fit above it.
  bool stacks_fit(std::span<const std::int32_t> waiting, std::int32_t first,
                  std::int32_t end, V capacity) {
    const auto count = static_cast<std::int32_t>(waiting.size());
    std::fill(stack_.begin() + first, stack_.begin() + end, V{0});
    for (std::int32_t i = 0; i < count; ++i) {
      order_[i] = static_cast<std::uint64_t>(offset_[i]) << 20 |
                  static_cast<std::uint64_t>(i);
    }
    std::sort(order_.begin(), order_.begin() + count, std::greater<>());
    for (std::int32_t j = 0; j < count; ++j) {
      const auto i = static_cast<std::int32_t>(order_[j] & ((1 << 20) - 1));
      V most = add_to_all(&stack_[start_[i]], end_[i] - start_[i], size_[i]);
      if (model_->periodic && end_again_[i]) {
        most = std::max(most, add_to_all(stack_.data(), end_again_[i], size_[i]));
      }
      if (most > capacity + model_->most_beyond - offset_[i]) return false;
    }
    return true;
  }

  const Model<V>* model_;
  // By position in `waiting`: lifespan, least offset from now on, size, and how far it
  // may reach above the capacity.
  std::vector<std::int32_t> start_, end_, start_again_, end_again_;
  std::vector<V> offset_, size_, beyond_;
  struct Stranded {
    std::int32_t position;
    V top;  // of the place it was passed over at
  };
  std::vector<Stranded> stranded_;
  std::vector<std::uint64_t> order_;
  std::vector<V> stack_;  // by section
  // By section: the least two offsets, and the position of the lower one; by position:
  // the highest offset that is left for it.
  std::vector<V> lowest_, second_, owner_, deadline_;
  // By block of sections: the highest offset at which anything in it lies low enough;
  // and the same, or -1 for a block that need not be looked at.
  static constexpr std::int32_t kBlock = 16;
  std::vector<V> roomiest_, open_;
  std::vector<std::int32_t> rushed_;
  std::int64_t lifts_ = 0;
};

}  // namespace memplan::dsa
