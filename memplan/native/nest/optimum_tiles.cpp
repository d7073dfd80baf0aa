#include "nest/optimum_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
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

std::vector<std::int64_t> divisors_of(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 1; i * i <= n; ++i) {
    if (n % i) continue;
    found.push_back(i);
    if (i * i != n) found.push_back(n / i);
  }
  std::ranges::sort(found);
  return found;
}

std::int64_t rounded_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

// The smallest extent for each number of visits, in units of the datapath's, from 1 on.
std::vector<std::int64_t> distinct(std::int64_t units) {
  std::vector<std::int64_t> found{units};
  while (found.back() > 1) {
    found.push_back(rounded_up(units, rounded_up(units, found.back() - 1)));
  }
  std::ranges::reverse(found);
  return found;
}

// What a column more adds to an input tile, over all parts of the window of `all`,
// where the largest part is of `part`: least where the others are as large.
double least_overlap(std::int64_t all, std::int64_t part, std::int64_t stride) {
  return static_cast<double>((all / part) * std::min(part, stride) +
                             std::min(all % part, stride));
}

// pJ of a memory made to measure.
double curve(const std::vector<Knot>& knots, double bytes) {
  if (bytes <= knots.front().bytes) return knots.front().pj;
  if (bytes >= knots.back().bytes) return knots.back().pj;
  const auto above = std::ranges::upper_bound(knots, bytes, {}, &Knot::bytes);
  const Knot &a = above[-1], &b = above[0];
  const double part = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
  return std::exp(std::log(a.pj) + part * (std::log(b.pj) - std::log(a.pj)));
}

}  // namespace

Tiles::Tiles(const Problem& problem, std::size_t most,
             const std::function<bool()>& stop)
    : problem_(problem),
      stop_(stop),
      whole_(problem.space == Space::kWhole),
      size_(problem.layer.sizes()),
      base_(problem.layer.bases()) {
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
  return mirrors_ && std::pair(at[kX], at[kFw]) < std::pair(at[kY], at[kFh]);
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
  std::array<double, kAxes> all;
  std::array<Covered, kAxes> own;
  for (int dim = 0; dim < kAxes; ++dim) {
    const auto at = tile.at[dim];
    all[dim] = static_cast<double>(size_[dim]);
    own[dim] = {static_cast<double>(extents_[dim][at]), visits_[dim][at],
                overlap_[dim][at]};
  }
  for (int t = 0; t < kTensors; ++t) {
    const auto [elements, fill] = moved(problem_, t, all, own);
    tile.elements[t] = elements;
    tile.fill[t] = fill;
  }
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
      if (own[last].empty() || std::ranges::equal(own[last], before[last], same))
        continue;
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

// ---- extents

void Tiles::list_extents() {
  for (int dim = 0; dim < kAxes; ++dim) {
    const std::int64_t all = size_[dim], base = base_[dim];
    const std::int64_t units = rounded_up(all, base);
    std::vector<std::int64_t> counts;
    if (whole_) {
      counts = distinct(units);
    } else if (is_window(dim)) {
      counts = {1};
      if (units > 1) counts.push_back(units);
    } else {
      counts = divisors_of(units);
    }
    const std::int64_t stride = is_window(dim) ? problem_.layer.stride[dim - kFw] : 1;
    for (std::size_t at = 0; at < counts.size(); ++at) {
      const std::int64_t extent = std::min(counts[at] * base, all);
      const std::int64_t visits = rounded_up(units, counts[at]);
      extents_[dim].push_back(extent);
      visits_[dim].push_back(static_cast<double>(visits));
      double overlap = least_overlap(all, extent, stride);
      if (whole_ && is_window(dim)) {
        // Of all extents that are visited as often.
        for (auto n = counts[at]; n < units && rounded_up(units, n) == visits; ++n) {
          overlap = std::min(overlap, least_overlap(all, n * base, stride));
        }
      }
      overlap_[dim].push_back(overlap);
    }
  }
}

// Takes neighbours among the extents of one dimension together, those that differ by
// less than `ratio`. What the datapath covers and the whole stay as they are.
void Tiles::take_together(int dim, double ratio) {
  const auto extents = std::move(extents_[dim]);
  const auto visits = std::move(visits_[dim]), overlap = std::move(overlap_[dim]);
  extents_[dim].clear(), visits_[dim].clear(), overlap_[dim].clear();
  const std::size_t last = extents.size() - 1;
  for (std::size_t at = 0; at <= last;) {
    const std::size_t first = at++;
    double least = overlap[first];
    const double most = ratio * static_cast<double>(extents[first]);
    while (first > 0 && at < last && static_cast<double>(extents[at]) < most) {
      least = std::min(least, overlap[at++]);
    }
    extents_[dim].push_back(extents[first]);
    visits_[dim].push_back(visits[at - 1]);
    overlap_[dim].push_back(least);
  }
}

void Tiles::coarsen(std::size_t most) {
  std::array<double, kAxes> ratio;
  ratio.fill(1);
  const auto extents = extents_;
  const auto visits = visits_, overlap = overlap_;
  const auto tiles = [&] {
    double product = mirrors_ ? 0.5 : 1;
    for (const auto& own : extents_) product *= static_cast<double>(own.size());
    return product;
  };
  while (tiles() > static_cast<double>(most)) {
    const auto widest = std::ranges::max_element(
        extents_, {}, [](const auto& own) { return own.size(); });
    const int dim = static_cast<int>(widest - extents_.begin());
    if (widest->size() <= 3) return;
    ratio[dim] *= 1.05;
    // Columns and rows that are alike stay alike.
    const bool pair = mirrors_ && mirror(dim) != dim;
    for (const int one : {dim, pair ? mirror(dim) : dim}) {
      extents_[one] = extents[one];
      visits_[one] = visits[one];
      overlap_[one] = overlap[one];
      take_together(one, ratio[dim]);
    }
    if (pair) ratio[mirror(dim)] = ratio[dim];
  }
}

// ---- the memories that tiles may be kept in, and what these cost

// What so many elements of a tensor cost to keep, and where the bytes come from. sliding:
// only in memories that can have sliding buffers. last: outermost.
Tiles::Choices Tiles::choices(int t, double elements, bool sliding, bool last) const {
  const Memories& memories = problem_.memories[t];
  const double bytes = problem_.bytes(t, elements);
  Choices found;
  const auto offer = [&](double pj, int pool, bool slides) {
    if (pj >= memories.main_pj || elements <= 0 || (sliding && !slides)) return;
    if (pool >= 0 && bytes > problem_.pools[pool]) return;
    found.emplace_back(pj, pool);
  };
  if (!memories.knots.empty() && bytes <= memories.largest) {
    const auto& knots = last && tells_last(t) ? memories.last : memories.knots;
    offer(curve(knots, bytes), memories.pool, memories.slides);
  }
  for (const Level& level : memories.levels) {
    if (bytes <= level.bytes) offer(level.pj, level.pool, level.slides);
  }
  // The cheapest that nobody else uses makes all dearer ones pointless.
  std::ranges::sort(found);
  const auto own = std::ranges::find(found, -1, [](auto& c) { return c.second; });
  if (own != found.end()) found.erase(own + 1, found.end());
  return found;
}

void Tiles::list_prices() {
  for (int t = 0; t < kTensors; ++t) {
    const bool slides = sliding_ && t == kInput;
    // By size: inside others and outermost, in any memory, and where it slides.
    std::map<double, std::array<Choices, 4>> kept;
    std::size_t number = 0;
    for (const Tile& tile : tiles_) {
      look(number++);
      kept[tile.elements[t]];
    }
    Choices all;
    for (auto& [elements, own] : kept) {
      look(number++);
      for (const bool last : {false, true}) {
        if (last && !tells_last(t)) continue;
        own[2 * last] = choices(t, elements, false, last);
        if (slides) own[2 * last + 1] = choices(t, elements, true, last);
      }
      for (const Choices& some : own) all.insert(all.end(), some.begin(), some.end());
    }
    std::ranges::sort(all);
    all.erase(std::ranges::unique(all).begin(), all.end());
    for (const auto& [pj, pool] : all) prices_[t].push_back(pj);
    prices_[t].push_back(problem_.memories[t].main_pj);
    struct Listed {
      std::array<std::size_t, 5> begin;
      int cheapest;
    };
    std::map<double, Listed> listed;
    int least = static_cast<int>(all.size());
    for (auto entry = kept.rbegin(); entry != kept.rend(); ++entry) {
      look(number++);
      Listed& own = listed[entry->first];
      for (int i = 0; i < 4; ++i) {
        own.begin[i] = options_[t].size();
        for (const auto& choice : entry->second[i]) {
          const auto code = std::ranges::lower_bound(all, choice) - all.begin();
          options_[t].push_back({static_cast<int>(code), choice.second});
          least = std::min(least, static_cast<int>(code));
        }
      }
      own.begin[4] = options_[t].size();
      own.cheapest = least;
    }
    for (Tile& tile : tiles_) {
      look(number++);
      const auto& [begin, cheapest] = listed[tile.elements[t]];
      const Option* const first = options_[t].data();
      const int last = tells_last(t) ? 2 : 0;  // otherwise the same as inside
      tile.inside[t] = {first + begin[0], first + begin[1]};
      tile.outermost[t] = {first + begin[last], first + begin[last + 1]};
      if (slides) {
        tile.sliding = {std::span(first + begin[1], first + begin[2]),
                        std::span(first + begin[last + 1], first + begin[last + 2])};
      }
      tile.cheapest[t] = cheapest;
    }
  }
}

}  // namespace memplan::nest::optimum
