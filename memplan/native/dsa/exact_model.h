// What the exact search is told, a partial packing, and rankings of what waits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dsa/bestfit.h"
#include "dsa/random.h"
#include "dsa/sections.h"

namespace memplan::dsa {

/// A problem for the exact search, in the buffers' own order.
///
/// Sizes, alignments and fixed offsets (-1: free) in any unit; lifespans as in
/// Blocks, on its clock. Every span has n entries.
///
/// beyond: how far each may reach above the capacity, for padding that nothing lies
/// upon is part of the size, and may stand out; empty for 0.
struct Instance {
  Blocks blocks;
  std::span<const std::int64_t> fixed, beyond;
};

/// The buffers of an Instance, lifespans in sections. V holds sizes.
///
/// Buffer k lives in the sections [start, end) and [start_again, end_again), the
/// second of which is empty unless its lifespan reaches over the end of the period.
template <class V>
struct Model {
  std::int32_t n = 0, sections = 0;
  bool periodic = false, aligned = false, any_fixed = false;
  std::vector<V> size, align, fixed, beyond;
  V most_beyond = 0;
  std::vector<std::int64_t> life;  // in ticks
  std::vector<std::int32_t> start, end, start_again, end_again;
  // The one before it, and after it, that is alike, or -1.
  std::vector<std::int32_t> twin, next_twin;
  // Those alive at the same time, ascending.
  std::vector<std::vector<std::int32_t>> neighbours;

  bool overlap(std::int32_t i, std::int32_t k) const {
    const auto meet = [](auto a, auto b, auto c, auto d) { return a < d && c < b; };
    return meet(start[i], end[i], start[k], end[k]) ||
           meet(start[i], end[i], start_again[k], end_again[k]) ||
           meet(start_again[i], end_again[i], start[k], end[k]) ||
           meet(start_again[i], end_again[i], start_again[k], end_again[k]);
  }
};

template <class V>
void find_twins(Model<V>& model) {
  const auto key = [&](std::int32_t k) {
    return std::tuple(model.start[k], model.end[k], model.end_again[k], model.size[k],
                      model.align[k], model.beyond[k]);
  };
  std::vector<std::int32_t> order(model.n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto i, auto k) { return key(i) < key(k); });
  std::erase_if(order, [&](auto k) { return model.fixed[k] >= 0; });
  model.twin.assign(model.n, -1);
  model.next_twin.assign(model.n, -1);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (key(order[i - 1]) != key(order[i])) continue;
    model.twin[order[i]] = order[i - 1];
    model.next_twin[order[i - 1]] = order[i];
  }
}

template <class V>
Model<V> model_of(const Instance& instance) {
  const Blocks& blocks = instance.blocks;
  const Sections sections =
      cut_into_sections(blocks.lower, blocks.upper, blocks.period);
  Model<V> model;
  model.n = static_cast<std::int32_t>(blocks.size.size());
  model.sections = sections.count;
  for (std::int32_t i = 0; i < model.n; ++i) {
    const std::int32_t count = sections.count, end = sections.end[i];
    const std::int64_t align = blocks.alignment.empty() ? 1 : blocks.alignment[i];
    model.size.push_back(static_cast<V>(blocks.size[i]));
    model.align.push_back(static_cast<V>(align));
    model.fixed.push_back(static_cast<V>(instance.fixed[i]));
    model.beyond.push_back(
        instance.beyond.empty() ? V{0} : static_cast<V>(instance.beyond[i]));
    model.most_beyond = std::max(model.most_beyond, model.beyond.back());
    model.life.push_back(blocks.upper[i] - blocks.lower[i]);
    model.start.push_back(sections.start[i]);
    model.end.push_back(std::min(end, count));
    model.start_again.push_back(0);
    model.end_again.push_back(std::max(end - count, 0));
    model.periodic |= end > count;
    model.aligned |= align > 1;
    model.any_fixed |= instance.fixed[i] >= 0;
  }
  model.neighbours.resize(model.n);
  for (std::int32_t i = 0; i < model.n; ++i) {
    for (std::int32_t k = 0; k < model.n; ++k) {
      if (i != k && model.overlap(i, k)) model.neighbours[i].push_back(k);
    }
  }
  find_twins(model);
  return model;
}

/// Which buffers are placed where, and the least offset that is left for the others.
///
/// The least offset of a waiting buffer is the highest top of the placed ones that
/// overlap it in time, rounded up to its alignment; a fixed buffer's is its own.
/// Every change is logged, so that `undo` can take it back.
template <class V>
class State {
 public:
  /// The model must outlive the state.
  explicit State(const Model<V>& model)
      : model_(&model),
        least_(model.n, 0),
        floor_(model.sections, 0),
        remaining_(model.sections, 0),
        barred_(model.n, -1),
        crossing_(model.sections + 1, 0),
        waits_(model.n, true) {
    for (std::int32_t k = 0; k < model.n; ++k) {
      least_[k] = std::max(model.fixed[k], V{0});
      uncover(k);
    }
  }

  /// Places buffer k at its least offset. False if some waiting buffer then cannot lie
  /// beneath `capacity`, or not at its fixed offset; `undo` all the same.
  bool place(std::int32_t k, V capacity) {
    const Model<V>& model = *model_;
    const V top = least_[k] + model.size[k];
    log_.push_back({kPlaced, static_cast<V>(k)});
    waits_[k] = false;
    cross(k, -1);
    cover(model.start[k], model.end[k], top, model.size[k]);
    if (model.periodic) cover(0, model.end_again[k], top, model.size[k]);
    if (top > capacity + model.beyond[k]) return false;
    // A place above the capacity is none; so no sum grows beyond twice that.
    const V none = capacity + model.most_beyond + 1;
    for (const std::int32_t i : model.neighbours[k]) {
      if (!waits_[i] || least_[i] >= top) continue;
      if (model.any_fixed && model.fixed[i] >= 0) return false;
      const V least = model.aligned ? aligned(top, model.align[i], none) : top;
      if (least > capacity + model.beyond[i] - model.size[i]) return false;
      set(least_[i], least, i);
    }
    return true;
  }

  /// A moment to come back to.
  std::size_t mark() const { return log_.size(); }

  void undo(std::size_t mark) {
    while (log_.size() > mark) {
      const Change change = log_.back();
      log_.pop_back();
      if (change.what == kPlaced) {
        uncover(static_cast<std::int32_t>(change.before));
      } else if (change.what < 0) {
        floor_[~change.what] = change.before;
      } else if (change.what >= kBarred) {
        barred_[change.what - kBarred] = change.before;
      } else {
        least_[change.what] = change.before;
      }
    }
  }

  /// Notes that buffer k was tried at its least offset, in vain: it does not lie there.
  /// What is alike and waits does not, either.
  void bar(std::int32_t k) {
    for (; k >= 0; k = model_->next_twin[k]) {
      if (waits_[k]) set(barred_[k], least_[k], kBarred + k);
    }
  }

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

  static V aligned(V offset, V alignment, V limit) {
    if (alignment >= limit) return offset > 0 ? limit : offset;
    return (offset + alignment - 1) / alignment * alignment;
  }

  void cover(std::int32_t start, std::int32_t end, V top, V size) {
    for (std::int32_t s = start; s < end; ++s) {
      set(floor_[s], top, ~s);
      remaining_[s] -= size;
    }
  }

  void uncover(std::int32_t k) {
    const Model<V>& model = *model_;
    const V size = model.size[k];
    for (auto s = model.start[k]; s < model.end[k]; ++s) remaining_[s] += size;
    for (auto s = 0; s < model.end_again[k]; ++s) remaining_[s] += size;
    waits_[k] = true;
    cross(k, 1);
  }

  void cross(std::int32_t k, std::int32_t by) {
    const Model<V>& model = *model_;
    for (auto s = model.start[k] + 1; s < model.end[k]; ++s) crossing_[s] += by;
    if (model.end_again[k] == 0) return;
    for (auto s = 0; s < model.end_again[k]; ++s) crossing_[s] += by;
  }

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

/// Ranks waiting buffers by up to four letters, all descending, ties by index:
/// W lifetime, A lifetime x size, T largest total of waiting bytes in a section lived
/// through, C sections, Z size, O number of waiting buffers that overlap. T and O change
/// as buffers are placed.
template <class V>
class Ranking {
 public:
  /// The model must outlive the ranking. Throws std::invalid_argument for other
  /// letters, or more of them.
  Ranking(const Model<V>& model, const std::string& letters)
      : model_(&model), keys_(model.n) {
    change(letters, 0, 0);
  }

  /// Ranks by other letters from now on, and by what is measured times a factor for
  /// each buffer, of that deviation about 1: chance, the same for the same seed.
  void change(const std::string& letters, std::uint64_t seed, double deviation) {
    if (letters.size() > kMost || letters.find_first_not_of("WATCZO") != letters.npos) {
      throw std::invalid_argument("an order is up to four of the letters W A T C Z O");
    }
    letters_ = letters;
    factors_.assign(model_->n, 1);
    Random random(seed);
    for (std::int32_t k = 0; k < model_->n; ++k) {
      if (deviation > 0) factors_[k] = std::exp(deviation * random.normal());
      keys_[k].fill(0);
      for (std::size_t i = 0; i < letters.size(); ++i) {
        keys_[k][i] = factors_[k] * constant(letters[i], k);
      }
    }
  }

  /// Sorts some of the buffers that wait, by what waits now.
  void sort(std::span<std::int32_t> waiting, const State<V>& state) {
    for (std::size_t i = 0; i < letters_.size(); ++i) {
      const char letter = letters_[i];
      if (letter != 'T' && letter != 'O') continue;
      for (const std::int32_t k : waiting) {
        keys_[k][i] = factors_[k] * now(letter, k, state);
      }
    }
    std::sort(waiting.begin(), waiting.end(), [&](std::int32_t i, std::int32_t k) {
      return keys_[i] != keys_[k] ? keys_[i] > keys_[k] : i < k;
    });
  }

 private:
  static constexpr std::size_t kMost = 4;
  using Key = std::array<double, kMost>;

  double constant(char letter, std::int32_t k) const {
    const Model<V>& model = *model_;
    const auto life = static_cast<double>(model.life[k]);
    const auto size = static_cast<double>(model.size[k]);
    switch (letter) {
      case 'W': return life;
      case 'A': return life * size;
      case 'Z': return size;
      case 'C': return model.end[k] - model.start[k] + model.end_again[k];
      default: return 0;
    }
  }

  double now(char letter, std::int32_t k, const State<V>& state) const {
    const Model<V>& model = *model_;
    if (letter == 'O') {
      return static_cast<double>(std::count_if(model.neighbours[k].begin(),
                                               model.neighbours[k].end(),
                                               [&](auto i) { return state.waits(i); }));
    }
    V most = 0;
    const auto look = [&](std::int32_t start, std::int32_t end) {
      for (std::int32_t s = start; s < end; ++s) {
        most = std::max<V>(most, state.remaining()[s]);
      }
    };
    look(model.start[k], model.end[k]);
    look(model.start_again[k], model.end_again[k]);
    return static_cast<double>(most);
  }

  const Model<V>* model_;
  std::string letters_;
  std::vector<Key> keys_;        // by buffer
  std::vector<double> factors_;  // by buffer
};

}  // namespace memplan::dsa
