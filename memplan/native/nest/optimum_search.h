// Partial loop nests, from the outermost loop inwards, of which only the best are kept.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "nest/optimum_bound.h"
#include "nest/optimum_tiles.h"
#include "parallel.h"

namespace memplan::nest::optimum {

using Stop = std::function<bool()>;

/// A step of a complete nest, the tensors' codes inside of it, and whether the input's
/// inner tile slides along it.
struct Move {
  std::int32_t step;
  Codes codes;
  bool slides;
};

/// How a pass ended. improved: it found a nest, of `energy` and `moves`, outermost
/// first. lower_bound: no nest takes less than this or the incumbent. stopped: before
/// the end, and nothing more is known.
struct PassResult {
  bool improved = false, stopped = false;
  double energy = 0, lower_bound = 0;
  std::vector<Move> moves;
  std::int64_t labels = 0;
};

template <int kPools>
struct Label {
  double cost;
  Codes codes;
  std::int32_t parent;  // among the labels of the outer tile
  std::int32_t step;
  bool slides;  // the input's inner tile, along the step
  std::array<double, kPools> left;  // bytes, of each pool
};

template <int kPools>
struct Candidate {
  Label<kPools> label;
  double bound;  // of the energy of nests that it leads to
};

// Whether a is at least as good as b in all respects. open: by tensor, the code of what
// may still have its outermost memory at a price of its own.
template <int kPools>
bool dominates(const Label<kPools>& a, const Label<kPools>& b, const Codes& open) {
  bool ok = a.cost <= b.cost;
  for (int t = 0; t < kTensors; ++t) {
    ok &= a.codes[t] <= b.codes[t];
    ok &= b.codes[t] != open[t] || a.codes[t] == open[t];
  }
  for (int p = 0; p < kPools; ++p) ok &= a.left[p] >= b.left[p];
  return ok;
}

/// All partial nests that may lead to less energy than an incumbent's.
///
/// A label stands for loops outside of a tile, with the tensors' memories chosen: its
/// energy so far, the price each tensor is served at, and the bytes taken of each pool.
/// Of two labels for one tile, the one that is no better in any of these is dropped;
/// so is one from which, by the bounds, nothing better than the incumbent follows.
template <int kPools>
class Pass {
 public:
  /// See `run_pass`.
  Pass(const Tiles& tiles, const Bound& bound, double incumbent, std::size_t width,
       std::size_t most, const Stop& stop)
      : tiles_(tiles),
        bound_(bound),
        incumbent_(incumbent),
        width_(width),
        most_(most),
        stop_(stop),
        shelves_(tiles_.tiles().size()) {
    Label<kPools> label{0, {}, -1, -1, false, {}};
    for (int t = 0; t < kTensors; ++t) {
      label.codes[t] = tiles_.main_code(t);
      open_[t] = tiles_.tells_last(t) ? label.codes[t] : -1;
    }
    for (int p = 0; p < kPools; ++p) label.left[p] = tiles_.problem().pools[p];
    shelves_[0].labels = {label};
    shelves_[0].begin = {0, 1, 1, 1, 1};
  }

  // Gathers, for one tile, the labels that lead there.
  void visit(std::int32_t tile) {
    if (stopped()) return;
    Found found;
    std::size_t looked_at = 0;
    for (const std::int32_t index : tiles_.outward(tile)) {
      const Step& step = tiles_.step(index);
      const Shelf& shelf = shelves_[step.from];
      for (int kind = 0; kind < kKinds; ++kind) {
        for (std::int32_t i = shelf.begin[kind]; i < shelf.begin[kind + 1]; ++i) {
          if (++looked_at % 1024 == 0 && stopped()) return;
          Candidate<kPools> next{shelf.labels[i], 0};
          next.label.parent = i;
          next.label.step = index;
          next.label.slides = false;
          choose(step, kind, 0, 0, next, found);
        }
      }
    }
    keep(tile, found);
  }

  bool stopped() {
    if (!stopped_ && (labels_ > most_ || stop_())) stopped_ = true;
    return stopped_;
  }

  // The least energy of a complete nest, and the loops and memories that take it.
  PassResult result() const {
    PassResult result;
    result.stopped = stopped_;
    result.energy = incumbent_;
    result.labels = static_cast<std::int64_t>(labels_.load());
    if (stopped_) return result;
    const std::int32_t last = static_cast<std::int32_t>(shelves_.size()) - 1;
    std::int32_t best = -1;
    for (std::size_t i = 0; i < shelves_[last].labels.size(); ++i) {
      const auto& label = shelves_[last].labels[i];
      double energy = label.cost;
      for (int t = 0; t < kTensors; ++t) {
        energy += tiles_.demand(t) * tiles_.prices(t)[label.codes[t]];
      }
      if (energy < result.energy) {
        result.energy = energy;
        best = static_cast<std::int32_t>(i);
      }
    }
    result.improved = best >= 0;
    result.lower_bound = result.energy;
    for (const Shelf& shelf : shelves_) {
      result.lower_bound = std::min(result.lower_bound, shelf.left_out);
    }
    for (std::int32_t tile = last; best >= 0 && tile > 0;) {
      const auto& label = shelves_[tile].labels[best];
      result.moves.push_back({label.step, label.codes, label.slides});
      tile = tiles_.step(label.step).from;
      best = label.parent;
    }
    std::ranges::reverse(result.moves);
    return result;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  // Labels between two looks at the clock.
  static constexpr std::size_t kCompared = 1 << 18;

  // The labels of one tile, by kind. left_out: the least bound among those that were
  // dropped for want of room.
  struct Shelf {
    std::vector<Label<kPools>> labels;
    std::array<std::int32_t, kKinds + 1> begin{};
    double left_out = kNever;
  };
  using Found = std::array<std::vector<Candidate<kPools>>, kKinds>;

  // Every choice of memories for those tensors from t on that are used again, or slide.
  void choose(const Step& step, int kind, unsigned keep, int t, Candidate<kPools>& next,
              Found& found) {
    const bool kernel = tiles_.problem().layer.kernel;
    if (t == kTensors) {
      offer(step.to, kind_inside(step.dim, kind, keep, kernel), next, found);
      return;
    }
    const bool leaps = step.leap && t == kInput;
    if (!leaps) choose(step, kind, keep, t + 1, next, found);
    if (t == kInput && tiles_.may_slide(step)) {
      choose_memory(step, kind, keep, t, true, next, found);
    }
    if (!leaps && worth_keeping(tiles_.reused(step), kind) >> t & 1) {
      choose_memory(step, kind, keep, t, false, next, found);
    }
  }

  // Every memory of one tensor's outer tile, or of the inner one that slides; and then
  // of the tensors after it.
  void choose_memory(const Step& step, int kind, unsigned keep, int t, bool slides,
                     Candidate<kPools>& next, Found& found) {
    const Tile& tile = tiles_.tiles()[step.from];
    const Tile& held = slides ? tiles_.tiles()[step.to] : tile;
    const Problem& problem = tiles_.problem();
    const auto prices = tiles_.prices(t);
    const bool last = next.label.codes[t] == tiles_.main_code(t);
    for (const Option& option : held.options(t, slides, last)) {
      const double pj = prices[option.code], before = prices[next.label.codes[t]];
      if (pj >= before) continue;
      const Label<kPools> saved = next.label;
      next.label.cost += tile.fill[t] * (before + problem.filling(pj));
      next.label.codes[t] = option.code;
      next.label.slides |= slides;
      bool fits = true;
      if constexpr (kPools > 0) {
        if (option.pool >= 0) {
          double& left = next.label.left[option.pool];
          left -= problem.bytes(t, held.elements[t]);
          fits = left >= 0;
        }
      }
      if (fits) choose(step, kind, keep | 1u << t, t + 1, next, found);
      next.label = saved;
    }
  }

  void offer(std::int32_t tile, int kind, Candidate<kPools>& next, Found& found) {
    const Label<kPools>& label = next.label;
    next.bound = label.cost + bound_(tile, kind, label.codes);
    if (next.bound < incumbent_) found[kind].push_back(next);
  }

  // Drops what is dominated and, of the rest, all but the most promising.
  void keep(std::int32_t tile, Found& found) {
    Shelf& shelf = shelves_[tile];
    for (int kind = 0; kind < kKinds; ++kind) {
      shelf.begin[kind] = static_cast<std::int32_t>(shelf.labels.size());
      auto& candidates = found[kind];
      std::ranges::sort(candidates, [](const auto& a, const auto& b) {
        return a.bound != b.bound ? a.bound < b.bound : a.label.cost < b.label.cost;
      });
      std::size_t count = 0, compared = 0;
      for (const auto& candidate : candidates) {
        compared += count + 64;
        if (compared > kCompared) {
          if (stopped()) return;
          compared = 0;
        }
        // A fresh label can do all that another can.
        const auto better = [&](const Label<kPools>& label) {
          return dominates(label, candidate.label, open_);
        };
        const auto begin = shelf.labels.begin();
        if (std::any_of(begin + shelf.begin[kind], shelf.labels.end(), better) ||
            std::any_of(begin, begin + shelf.begin[1], better)) {
          continue;
        }
        if (width_ > 0 && count == width_) {
          shelf.left_out = std::min(shelf.left_out, candidate.bound);
          break;
        }
        shelf.labels.push_back(candidate.label);
        ++count;
      }
      if (kind == kFresh) shelf.begin[1] = static_cast<std::int32_t>(count);
    }
    shelf.begin[kKinds] = static_cast<std::int32_t>(shelf.labels.size());
    shelf.labels.shrink_to_fit();
    labels_ += shelf.labels.size();
  }

  const Tiles& tiles_;
  const Bound& bound_;
  const double incumbent_;
  const std::size_t width_, most_;
  const Stop& stop_;
  Codes open_;
  std::vector<Shelf> shelves_;
  std::atomic<std::size_t> labels_ = 0;
  std::atomic<bool> stopped_ = false;
};

/// One pass over all tiles with at most `width` labels for each, the most promising
/// (0: all there are). incumbent: energy that is to be improved on. Stops beyond `most`
/// labels in all. threads: at least one.
inline PassResult run_pass(const Tiles& tiles, const Bound& bound, int threads,
                           double incumbent, std::size_t width, std::size_t most,
                           const Stop& stop) {
  const auto run = [&]<int kPools>() {
    Pass<kPools> pass(tiles, bound, incumbent, width, most, stop);
    const auto layers = tiles.layers();
    for (std::size_t i = 1; i + 1 < layers.size() && !pass.stopped(); ++i) {
      for_each(layers[i], layers[i + 1], threads,
               [&](std::int32_t tile) { pass.visit(tile); });
    }
    return pass.result();
  };
  switch (tiles.problem().pools.size()) {
    case 0: return run.template operator()<0>();
    case 1: return run.template operator()<1>();
    case 2: return run.template operator()<2>();
    case 3: return run.template operator()<3>();
    default: return run.template operator()<kMostPools>();
  }
}

}  // namespace memplan::nest::optimum
