#include "nest/optimum_tiles.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

namespace memplan::nest::optimum {
namespace {

int prime_factors(std::int64_t n) {
  int count = 0;
  for (std::int64_t p = 2; p * p <= n; ++p) {
    for (; n % p == 0; n /= p) ++count;
  }
  return count + (n > 1);
}

}  // namespace

Tiles::Tiles(const Problem& problem, std::size_t most)
    : problem_(problem), whole_(problem.space == Space::kWhole),
      size_(problem.layer.sizes()), base_(problem.layer.bases()) {
  const auto& stride = problem_.layer.stride;
  const auto alike = [&](int a, int b) {
    return size_[a] == size_[b] && base_[a] == base_[b];
  };
  mirrors_ = alike(kX, kY) && alike(kFw, kFh) && stride[0] == stride[1];
  list_extents();
  if (whole_) coarsen(most);
  list_tiles();
  list_prices();
  list_steps();
}

// Whether tiles that follow each other along the loop overlap: a column more then adds
// less than the window is wide.
bool Tiles::slides(const Step& step) const {
  if (step.dim > kY) return false;
  const int window = kFw + (step.dim - kX);
  const int at = tiles_[step.from].at[window];
  return overlap_[window][at] < static_cast<double>(size_[window]);
}

bool Tiles::flipped(const Position& at) const {
  return mirrors_ &&
         std::pair(at[kX], at[kFw]) < std::pair(at[kY], at[kFh]);
}

bool Tiles::symmetric(const Position& at) const {
  return mirrors_ && at[kX] == at[kY] && at[kFw] == at[kFh];
}

std::size_t Tiles::key(const Position& at) const {
  std::size_t key = 0;
  for (int dim = 0; dim < kAxes; ++dim) key = key * extents_[dim].size() + at[dim];
  return key;
}

// How many steps at most each extent is from the datapath's. The window in one piece is
// one step, that of its columns where it has any.
Tiles::Heights Tiles::heights() const {
  Heights found;
  for (int dim = 0; dim < kAxes; ++dim) {
    const bool with_columns = !whole_ && dim == kFh && extents_[kFw].size() > 1;
    for (std::size_t at = 0; at < extents_[dim].size(); ++at) {
      const std::int64_t trips = extents_[dim][at] / base_[dim];
      const bool counted = whole_ || is_window(dim);
      const int steps = counted ? static_cast<int>(at) : prime_factors(trips);
      found[dim].push_back(with_columns ? 0 : steps);
    }
  }
  return found;
}

void Tiles::list_tiles() {
  std::size_t most = 1;
  for (int dim = 0; dim < kAxes; ++dim) {
    most *= extents_[dim].size();
    if (extents_[dim].size() > 65535 || most > 4 * kMost) {
      throw std::overflow_error("the layer has too many tiles");
    }
  }
  const Heights height = heights();
  std::vector<std::pair<int, Tile>> found;
  Tile tile;
  for (std::size_t number = 0; number < most; ++number) {
    std::size_t rest = number;
    int high = 0;
    for (const int dim : {kB, kK, kC, kY, kX, kFh, kFw}) {
      tile.at[dim] = static_cast<std::uint16_t>(rest % extents_[dim].size());
      rest /= extents_[dim].size();
      high += height[dim][tile.at[dim]];
    }
    // The window in one piece is inside or outside.
    const bool split = extents_[kFw].size() == 2 && extents_[kFh].size() == 2 &&
                       tile.at[kFw] != tile.at[kFh];
    if ((!whole_ && split) || flipped(tile.at)) continue;
    found.emplace_back(high, tile);
  }
  std::ranges::stable_sort(
      found, [](const auto& a, const auto& b) { return a.first > b.first; });
  index_.assign(most, -1);
  tiles_.reserve(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i == 0 || found[i].first != found[i - 1].first) {
      layers_.push_back(static_cast<std::int32_t>(i));
    }
    tiles_.push_back(found[i].second);
    index_[key(found[i].second.at)] = static_cast<std::int32_t>(i);
  }
  layers_.push_back(static_cast<std::int32_t>(tiles_.size()));
  for (Tile& listed : tiles_) fill_in(listed);
  for (int t = 0; t < kTensors; ++t) demand_[t] = tiles_.back().fill[t];
}

void Tiles::fill_in(Tile& tile) const {
  const Layer& layer = problem_.layer;
  std::array<double, kAxes> all, own, visits;
  for (int dim = 0; dim < kAxes; ++dim) {
    all[dim] = static_cast<double>(size_[dim]);
    own[dim] = static_cast<double>(extents_[dim][tile.at[dim]]);
    visits[dim] = visits_[dim][tile.at[dim]];
  }
  double input = own[kC] * own[kB], fetched = all[kC] * all[kB] * visits[kK];
  for (int i = 0; i < 2; ++i) {
    const int along = kX + i, window = kFw + i;
    const double stride = static_cast<double>(layer.stride[i]);
    input *= (own[along] - 1) * std::min(stride, own[window]) + own[window];
    // Of each tile the window's parts, and what every further column adds to them.
    fetched *= visits[along] * all[window] +
               (all[along] - visits[along]) * overlap_[window][tile.at[window]];
  }
  const double window = all[kFw] * all[kFh];
  tile.elements[kInput] = input;
  tile.fill[kInput] = fetched;
  tile.elements[kKernel] = tile.fill[kKernel] = 0;
  if (layer.kernel) {
    tile.elements[kKernel] = own[kC] * own[kK] * own[kFw] * own[kFh];
    tile.fill[kKernel] = all[kC] * all[kK] * window * visits[kX] * visits[kY] *
                         visits[kB];
  }
  tile.elements[kOutput] = own[kX] * own[kY] * own[kK] * own[kB];
  // Every partial sum but the first is also read back.
  tile.fill[kOutput] = all[kX] * all[kY] * all[kK] * all[kB] *
                       problem_.passes(visits[kC] * visits[kFw] * visits[kFh]);
}

double Tiles::curve(int tensor, double bytes) const {
  const std::vector<Knot>& knots = problem_.memories[tensor].knots;
  if (bytes <= knots.front().bytes) return knots.front().pj;
  if (bytes >= knots.back().bytes) return knots.back().pj;
  const auto above = std::ranges::upper_bound(knots, bytes, {}, &Knot::bytes);
  const Knot &a = above[-1], &b = above[0];
  const double part = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
  return std::exp(std::log(a.pj) + part * (std::log(b.pj) - std::log(a.pj)));
}

void Tiles::list_prices() {
  for (int t = 0; t < kTensors; ++t) {
    const Memories& memories = problem_.memories[t];
    // By size: what it costs to keep, and where the bytes come from.
    std::map<double, std::vector<std::pair<double, int>>> kept;
    for (const Tile& tile : tiles_) kept[tile.elements[t]];
    std::vector<std::pair<double, int>> all;
    for (auto& [elements, choices] : kept) {
      const double bytes = problem_.bytes(t, elements);
      const auto offer = [&](double pj, int pool) {
        if (pj >= memories.main_pj || elements <= 0) return;
        if (pool >= 0 && bytes > problem_.pools[pool]) return;
        choices.emplace_back(pj, pool);
      };
      if (!memories.knots.empty() && bytes <= memories.largest) {
        offer(curve(t, bytes), memories.pool);
      }
      for (const Level& level : memories.levels) {
        if (bytes <= level.bytes) offer(level.pj, level.pool);
      }
      // The cheapest that nobody else uses makes all dearer ones pointless.
      std::ranges::sort(choices);
      const auto own = std::ranges::find(choices, -1, [](auto& c) { return c.second; });
      if (own != choices.end()) choices.erase(own + 1, choices.end());
      all.insert(all.end(), choices.begin(), choices.end());
    }
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    for (const auto& [pj, pool] : all) prices_[t].push_back(pj);
    prices_[t].push_back(memories.main_pj);
    std::map<double, std::pair<std::size_t, std::size_t>> ranges;
    std::map<double, int> cheapest;
    int least = static_cast<int>(all.size());
    for (auto entry = kept.rbegin(); entry != kept.rend(); ++entry) {
      const std::size_t begin = options_[t].size();
      for (const auto& choice : entry->second) {
        const auto code = std::ranges::lower_bound(all, choice) - all.begin();
        options_[t].push_back({static_cast<int>(code), choice.second});
        least = std::min(least, static_cast<int>(code));
      }
      ranges[entry->first] = {begin, options_[t].size() - begin};
      cheapest[entry->first] = least;
    }
    for (Tile& tile : tiles_) {
      const auto [begin, count] = ranges[tile.elements[t]];
      tile.options[t] = {options_[t].data() + begin, count};
      tile.cheapest[t] = cheapest[tile.elements[t]];
    }
  }
}

void Tiles::add_step(std::int32_t from, Position inner, int dim) {
  const bool mirrored = flipped(inner);
  if (mirrored) {
    std::swap(inner[kX], inner[kY]);
    std::swap(inner[kFw], inner[kFh]);
  }
  out_.push_back({from, index_[key(inner)], static_cast<std::int8_t>(dim), mirrored});
}

void Tiles::add_steps(std::int32_t from, int dim) {
  const Position& at = tiles_[from].at;
  Position inner = at;
  if (whole_) {
    // Two steps along one dimension are as good as one over both.
    if (at[dim] == 0) return;
    --inner[dim];
    add_step(from, inner, dim);
    return;
  }
  for (inner[dim] = 0; inner[dim] < at[dim]; ++inner[dim]) {
    if (extents_[dim][at[dim]] % extents_[dim][inner[dim]]) continue;
    add_step(from, inner, dim);
  }
}

void Tiles::list_steps() {
  out_begin_.push_back(0);
  for (std::int32_t from = 0; from < static_cast<std::int32_t>(tiles_.size()); ++from) {
    const Position& at = tiles_[from].at;
    for (int dim = 0; dim < (whole_ ? kAxes : kDims); ++dim) {
      if (symmetric(at) && (dim == kY || dim == kFh)) continue;
      add_steps(from, dim);
    }
    if (!whole_ && (at[kFw] || at[kFh])) {
      Position inner = at;
      inner[kFw] = inner[kFh] = 0;
      add_step(from, inner, kF);
    }
    out_begin_.push_back(static_cast<std::int32_t>(out_.size()));
  }
  in_begin_.assign(tiles_.size() + 1, 0);
  for (const Step& step : out_) ++in_begin_[step.to + 1];
  for (std::size_t i = 0; i < tiles_.size(); ++i) in_begin_[i + 1] += in_begin_[i];
  in_.resize(out_.size());
  std::vector<std::int32_t> next(in_begin_.begin(), in_begin_.end() - 1);
  for (std::size_t i = 0; i < out_.size(); ++i) {
    in_[next[out_[i].to]++] = static_cast<std::int32_t>(i);
  }
}

}  // namespace memplan::nest::optimum
