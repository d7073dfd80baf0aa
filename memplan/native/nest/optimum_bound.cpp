#include "nest/optimum_bound.h"
#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>


namespace memplan::nest::optimum {
namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();

// Points among ascending prices, both ends and the last on the chip included.
std::vector<double> choose(std::span<const double> prices, int most) {
  std::vector<double> all(prices.begin(), prices.end());
  all.erase(std::ranges::unique(all).begin(), all.end());
  const int n = static_cast<int>(all.size());
  if (n <= std::max(most, 3)) return all;
  std::vector<double> points;
  const double low = std::log(all[0]), high = std::log(all[n - 2]);
  for (int i = 0, at = 0; i < most - 1; ++i) {
    const double goal = low + (high - low) * i / (most - 2);
    while (at < n - 2 && std::log(all[at]) < goal - 1e-9) ++at;
    if (points.empty() || points.back() < all[at]) points.push_back(all[at]);
  }
  points.push_back(all[n - 1]);
  return points;
}

}  // namespace

Grid::Grid(const Tiles& tiles, int most) : most_(most) {
  for (int t = 0; t < kTensors; ++t) {
    const auto prices = tiles.prices(t);
    const std::vector<double> points = choose(prices, std::max(most, 3));
    points_[t].assign(points.begin(), points.end());
    for (const double price : prices) {
      const auto above = std::ranges::lower_bound(points, price) - points.begin();
      const auto at = std::max<std::ptrdiff_t>(above - 1, 0);
      double part = 0;
      if (above > 0) part = (price - points[at]) / (points[above] - points[at]);
      exact_ = exact_ && (part == 0 || part == 1);
      places_[t].push_back({static_cast<std::int32_t>(at), static_cast<float>(part)});
    }
  }
}

int Grid::lowest(const Tile& tile, int tensor) const {
  const Place place = places_[tensor][tile.cheapest[tensor]];
  return place.at + (place.part == 1.0f);
}

std::size_t Grid::values(const Tiles& tiles) const {
  std::size_t total = 0;
  for (const Tile& tile : tiles.tiles()) {
    std::size_t volume = kKinds;
    for (int t = 0; t < kTensors; ++t) volume *= size(t) - lowest(tile, t);
    total += volume;
  }
  return total;
}

// Works out the values of one tile from those of the tiles inside it.
class Bound::Filler {
 public:
  Filler(Bound& bound, const Tiles& tiles)
      : bound_(bound), tiles_(tiles), kernel_(tiles.problem().layer.kernel) {}

  void fill(std::int32_t index) {
    const Box& box = bound_.boxes_[index];
    const auto steps = tiles_.inward(index);
    for (auto& best : best_) best.assign(box.volume(), kNever);
    for (auto& best : fresh_) best.assign(box.volume(), kNever);
    stripe_.assign(box.volume(), kNever);
    if (steps.empty()) serve(box);
    const Tile& tile = tiles_.tiles()[index];
    for (const Step& step : steps) {
      const Box& inner = bound_.boxes_[step.to];
      const unsigned all = tiles_.reused(step);
      if (tiles_.may_slide(step)) slide(box, tile, step);
      if (step.leap) continue;
      if (is_window(step.dim)) {
        for (int kind = 0; kind < kKinds; ++kind) {
          const unsigned free = worth_keeping(all, kind);
          peel(box, tile, inner, step.dim, {kind, 0, free}, best_[kind].data());
        }
        continue;
      }
      // Whichever other tensor's tile is kept, the choices are a fresh tile's.
      const unsigned again = reused_along(step.dim, kernel_);
      const int kept = again ? std::countr_zero(again) + 1 : kFresh;
      peel(box, tile, inner, step.dim, {kFresh, 0, again}, fresh_[kept].data());
      if (kept) {
        const unsigned free = worth_keeping(all, kept);
        peel(box, tile, inner, step.dim, {kept, 0, free}, best_[kept].data());
      }
      // But that of a stripe, which is kept only if the input's tile is not.
      if (const unsigned stripe = all & ~again) {
        peel(box, tile, inner, step.dim, {kFresh, stripe, all}, stripe_.data());
      }
    }
    for (const int kind : {kFresh, kKeptOutput}) least(best_[kind], stripe_);
    for (int kind = 0; kind < kKinds; ++kind) {
      for (int other = 0; other < kKinds; ++other) {
        if (kind != kFresh && other == kind) continue;
        least(best_[kind], fresh_[other]);
      }
    }
    for (int kind = 0; kind < kKinds; ++kind) {
      std::ranges::copy(best_[kind],
                        bound_.values_.get() + box.begin + kind * box.volume());
    }
  }

 private:
  // One term of a choice: the inner tile's values at a price of its own for some
  // tensors, and what it takes to fill their memories; in [first, past) of the outer
  // tile's points.
  struct Choice {
    int kind;
    const Tile* slid;
    std::array<const Option*, kTensors> kept{};
    std::array<std::int32_t, kTensors> first{}, past{};
  };

  // Of tiles of one kind, what must be kept at a step, and what may be; masks. slid: the
  // input's tile where that slides.
  struct Free {
    int kind;
    unsigned least, most;
    const Tile* slid = nullptr;
  };

  static void least(std::vector<float>& best, const std::vector<float>& other) {
    std::ranges::transform(best, other, best.begin(),
                           [](float a, float b) { return std::min(a, b); });
  }

  void serve(const Box& box) {
    std::size_t i = 0;
    for (int a = 0; a < box.size[0]; ++a) {
      for (int b = 0; b < box.size[1]; ++b) {
        for (int c = 0; c < box.size[2]; ++c, ++i) {
          double total = 0;
          const std::array at{a, b, c};
          for (int t = 0; t < kTensors; ++t) {
            total += tiles_.demand(t) * bound_.grid_->point(t, box.low[t] + at[t]);
          }
          for (auto& best : best_) best[i] = static_cast<float>(total);
        }
      }
    }
  }

  // A step along which the inner tile of the input slides: whatever else is kept.
  void slide(const Box& box, const Tile& tile, const Step& step) {
    const Box& inner = bound_.boxes_[step.to];
    const Tile* const slid = &tiles_.tiles()[step.to];
    const unsigned again = reused_along(step.dim, kernel_), input = 1u << kInput;
    const int kept = again ? std::countr_zero(again) + 1 : kFresh;
    peel(box, tile, inner, step.dim, {kFresh, input, again | input, slid},
         fresh_[kept].data());
    if (kept) {
      peel(box, tile, inner, step.dim, {kept, input, input, slid}, best_[kept].data());
    }
  }

  // All choices at one step, for tiles of one kind.
  void peel(const Box& box, const Tile& tile, const Box& inner, int dim,
            const Free& free, float* best) {
    for (unsigned keep = free.least; keep <= free.most; ++keep) {
      if (keep & ~free.most || free.least & ~keep) continue;
      Choice choice{kind_inside(dim, free.kind, keep, kernel_), free.slid};
      choice.past = box.size;
      choose_memories(box, tile, inner, keep, 0, choice, best);
    }
  }

  void choose_memories(const Box& box, const Tile& tile, const Box& inner,
                       unsigned keep, int tensor, Choice& choice, float* best) {
    if (tensor == kTensors) {
      lower(box, tile, inner, choice, best);
    } else if (!(keep >> tensor & 1)) {
      choose_memories(box, tile, inner, keep, tensor + 1, choice, best);
    } else {
      const bool slides = tensor == kInput && choice.slid;
      const Tile& held = slides ? *choice.slid : tile;
      const std::int32_t size = box.size[tensor];
      const auto choose = [&](bool last, std::int32_t first, std::int32_t past) {
        choice.first[tensor] = first;
        choice.past[tensor] = past;
        for (const Option& option : held.options(tensor, slides, last)) {
          choice.kept[tensor] = &option;
          choose_memories(box, tile, inner, keep, tensor + 1, choice, best);
        }
      };
      // Served by main memory, the last point, what is kept here lies outermost.
      if (tiles_.tells_last(tensor)) {
        choose(false, 0, size - 1);
        choose(true, size - 1, size);
      } else {
        choose(false, 0, size);
      }
      choice.first[tensor] = 0;
      choice.past[tensor] = size;
      choice.kept[tensor] = nullptr;
    }
  }

  // best = min(best, cost of the choice), over its points of the box.
  void lower(const Box& box, const Tile& tile, const Box& inner, const Choice& choice,
             float* best) {
    const Grid& grid = *bound_.grid_;
    double fixed = 0;
    std::array<float, kTensors> slope{}, part{};
    std::array<int, kTensors> at{}, next{};
    for (int t = 0; t < kTensors; ++t) {
      const Option* option = choice.kept[t];
      if (!option) continue;
      slope[t] = static_cast<float>(tile.fill[t]);
      fixed += tile.fill[t] * tiles_.problem().filling(tiles_.prices(t)[option->code]);
      const Grid::Place place = grid.place(t, option->code);
      at[t] = place.at - inner.low[t];
      next[t] = std::min(at[t] + 1, inner.size[t] - 1);
      part[t] = place.part;
      if (at[t] < 0) at[t] = next[t];  // then part is 1
    }
    const float* values =
        bound_.values_.get() + inner.begin + choice.kind * inner.volume();
    std::array<int, kTensors> shift;
    for (int t = 0; t < kTensors; ++t) shift[t] = box.low[t] - inner.low[t];
    const bool input = choice.kept[0], kernel = choice.kept[1], output = choice.kept[2];
    const auto& first_at = choice.first;
    float* const all = best;
    for (int a = first_at[0]; a < choice.past[0]; ++a) {
      const float low_a =
          static_cast<float>(fixed) + slope[0] * grid.point(0, box.low[0] + a);
      for (int b = first_at[1]; b < choice.past[1]; ++b) {
        best = all + (static_cast<std::size_t>(a) * box.size[1] + b) * box.size[2];
        const float start = low_a + slope[1] * grid.point(1, box.low[1] + b);
        const auto row = [&](int i, int k) {
          return values +
                 (static_cast<std::size_t>(i) * inner.size[1] + k) * inner.size[2];
        };
        const int i = input ? at[0] : a + shift[0], k = kernel ? at[1] : b + shift[1];
        const float* first = row(i, k);
        const float* second = input ? row(next[0], k) : row(i, kernel ? next[1] : k);
        const float mix = input ? part[0] : part[1];
        const int from = first_at[2], n = choice.past[2];
        if (output) {
          const float near = first[at[2]] + mix * (second[at[2]] - first[at[2]]);
          const float far = first[next[2]] + mix * (second[next[2]] - first[next[2]]);
          const float value = start + near + part[2] * (far - near);
          for (int c = from; c < n; ++c) {
            best[c] =
                std::min(best[c], value + slope[2] * grid.point(2, box.low[2] + c));
          }
        } else if (input || kernel) {
          first += shift[2], second += shift[2];
          for (int c = from; c < n; ++c) {
            const float inside = first[c] + mix * (second[c] - first[c]);
            best[c] = std::min(best[c], start + inside);
          }
        } else {
          first += shift[2];
          for (int c = from; c < n; ++c) best[c] = std::min(best[c], first[c]);
        }
      }
    }
  }

  Bound& bound_;
  const Tiles& tiles_;
  const bool kernel_;
  // By kind; and, by the tensor that a step uses again, what it costs any other kind.
  std::array<std::vector<float>, kKinds> best_, fresh_;
  std::vector<float> stripe_;  // what it costs where a stripe of the input is kept
};

Bound::Bound(const Tiles& tiles, const Grid& grid, int threads,
             const std::function<bool()>& stop)
    : grid_(&grid) {
  std::size_t total = 0;
  for (const Tile& tile : tiles.tiles()) {
    Box box{total, {}, {}};
    for (int t = 0; t < kTensors; ++t) {
      box.low[t] = grid.lowest(tile, t);
      box.size[t] = grid.size(t) - box.low[t];
    }
    boxes_.push_back(box);
    total += kKinds * box.volume();
  }
  values_ = std::make_unique_for_overwrite<float[]>(total);
  const auto layers = tiles.layers();
  // Each step rounds a few times, each time by at most 2^-24 of a value that is no
  // larger than the sum.
  safety_ = 1 - 0x1p-24 * 8 * static_cast<double>(layers.size() + 2);
  std::atomic<bool> stopped = false;
  for (std::size_t i = layers.size() - 1; i-- > 0 && !stopped;) {
    const std::int32_t begin = layers[i], end = layers[i + 1];
    const std::int32_t pieces = std::min<std::int32_t>(end - begin, threads * 4);
    const bool small = total < (1u << 16);
    for_each(0, pieces, small ? 1 : threads, [&](std::int32_t piece) {
      Filler filler(*this, tiles);
      for (std::int32_t tile = begin + piece; tile < end && !stopped; tile += pieces) {
        filler.fill(tile);
        if (stop()) stopped = true;
      }
    });
  }
  complete_ = !stopped;
}

double Bound::operator()(std::int32_t tile, int kind, const Codes& codes) const {
  const Box& box = boxes_[tile];
  std::array<std::array<std::size_t, 2>, kTensors> at;
  std::array<float, kTensors> part;
  std::size_t stride = 1;
  for (int t = kTensors - 1; t >= 0; --t) {
    const Grid::Place place = grid_->place(t, codes[t]);
    const std::int32_t first = place.at - box.low[t];
    const std::int32_t next = std::min(first + 1, box.size[t] - 1);
    at[t] = {static_cast<std::size_t>(std::max(first, 0)) * stride,
             static_cast<std::size_t>(next) * stride};
    part[t] = first < 0 ? 0.0f : place.part;
    stride *= box.size[t];
  }
  const float* values = values_.get() + box.begin + kind * stride;
  float plane[2];
  for (int a = 0; a < 2; ++a) {
    float row[2];
    for (int b = 0; b < 2; ++b) {
      const float* from = values + at[0][a] + at[1][b];
      row[b] = from[at[2][0]] + part[2] * (from[at[2][1]] - from[at[2][0]]);
    }
    plane[a] = row[0] + part[1] * (row[1] - row[0]);
  }
  return safety_ * static_cast<double>(plane[0] + part[0] * (plane[1] - plane[0]));
}

}  // namespace memplan::nest::optimum
