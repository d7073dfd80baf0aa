#include "nest/optimum_tiles.h"

#include <algorithm>
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

Tiles::Tiles(const Problem& problem, std::size_t most,
             const std::function<bool()>& stop)
    : problem_(problem), stop_(stop), whole_(problem.space == Space::kWhole),
      size_(problem.layer.sizes()), base_(problem.layer.bases()) {
  const auto& stride = problem_.layer.stride;
  const auto alike = [&](int a, int b) {
    return size_[a] == size_[b] && base_[a] == base_[b];
  };
  mirrors_ = alike(kX, kY) && alike(kFw, kFh) && stride[0] == stride[1];
  const Memories& inputs = problem_.memories[kInput];
  sliding_ = (inputs.slides && !inputs.knots.empty()) ||
             std::ranges::any_of(inputs.levels, &Level::slides);
  list_extents();
  if (whole_) coarsen(most);
  list_tiles();
  list_prices();
  list_steps();
}

// Looks at the clock for every so many of what a constructor lists.
void Tiles::look(std::size_t number) const {
  if (number % 4096 == 0 && stop_()) throw Stopped();
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
    look(number);
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
  for (std::size_t i = 0; i < tiles_.size(); ++i) {
    look(i);
    fill_in(tiles_[i]);
  }
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

const Tile& Tiles::tile_at(Position at) const {
  if (flipped(at)) {
    std::swap(at[kX], at[kY]);
    std::swap(at[kFw], at[kFh]);
  }
  return tiles_[index_[key(at)]];
}

void Tiles::add_step(std::int32_t from, Position inner, int dim, bool leap) {
  const bool mirrored = flipped(inner);
  if (mirrored) {
    std::swap(inner[kX], inner[kY]);
    std::swap(inner[kFw], inner[kFh]);
  }
  out_.push_back(
      {from, index_[key(inner)], static_cast<std::int8_t>(dim), mirrored, leap});
}

// Steps past `inner`, to the largest tile for each choice of memories to slide in: a
// smaller one in the same memory is of no use, unless its bytes are others' too.
void Tiles::add_leaps(std::int32_t from, Position inner, int dim) {
  const auto same = [](const Option& a, const Option& b) {
    return a.code == b.code && a.pool < 0 && b.pool < 0;
  };
  auto before = tile_at(inner).sliding;
  while (inner[dim] > 0) {
    --inner[dim];
    const auto own = tile_at(inner).sliding;
    for (const int last : {0, 1}) {
      if (own[last].empty() || std::ranges::equal(own[last], before[last], same)) continue;
      add_step(from, inner, dim, true);
      break;
    }
    before = own;
  }
}

void Tiles::add_steps(std::int32_t from, int dim) {
  const Position& at = tiles_[from].at;
  Position inner = at;
  if (whole_) {
    // Two steps along one dimension are as good as one over both.
    if (at[dim] == 0) return;
    --inner[dim];
    add_step(from, inner, dim);
    if (may_slide({from, 0, static_cast<std::int8_t>(dim), false, true})) {
      add_leaps(from, inner, dim);
    }
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
    look(static_cast<std::size_t>(from));
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
