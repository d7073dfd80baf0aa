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

double columns(double count, double window, double stride) {
  return window >= stride ? (count - 1) * stride + window : count * window;
}

}  // namespace

Tiles::Tiles(const Problem& problem) : problem_(problem) {
  const Layer& layer = problem_.layer;
  has_window_ = layer.window != layer.base_window;
  mirrors_ = layer.extent[kX] == layer.extent[kY] &&
             layer.base[kX] == layer.base[kY] && layer.window[0] == layer.window[1] &&
             layer.base_window[0] == layer.base_window[1] &&
             layer.stride[0] == layer.stride[1];
  for (int dim = 0; dim < kDims; ++dim) {
    const std::int64_t most = layer.extent[dim] / layer.base[dim];
    divisors_[dim] = divisors_of(most);
    trips_ *= static_cast<double>(most);
  }
  for (int i = 0; i < 2; ++i) {
    trips_ *= static_cast<double>(layer.window[i] / layer.base_window[i]);
  }
  list_tiles();
  list_prices();
  list_steps();
}

std::int32_t Tiles::index(Position at, bool window) const {
  if (mirrors_ && at[kX] < at[kY]) std::swap(at[kX], at[kY]);
  std::size_t key = window;
  for (int dim = 0; dim < kDims; ++dim) key = key * divisors_[dim].size() + at[dim];
  return index_[key];
}

void Tiles::list_tiles() {
  std::size_t most = 2;
  std::array<std::vector<int>, kDims> factors;
  for (int dim = 0; dim < kDims; ++dim) {
    most *= divisors_[dim].size();
    if (divisors_[dim].size() > 255 || most > kMost) {
      throw std::overflow_error("the layer has too many tiles");
    }
    for (const auto n : divisors_[dim]) factors[dim].push_back(prime_factors(n));
  }
  std::vector<std::pair<int, Tile>> found;
  Tile tile;
  for (std::size_t key = 0; key < most; ++key) {
    std::size_t rest = key;
    int height = 0;
    for (int dim = kDims - 1; dim >= 0; --dim) {
      tile.at[dim] = static_cast<std::uint8_t>(rest % divisors_[dim].size());
      rest /= divisors_[dim].size();
      height += factors[dim][tile.at[dim]];
    }
    tile.window = rest;
    if (tile.window && !has_window_) continue;
    if (mirrors_ && tile.at[kX] < tile.at[kY]) continue;
    found.emplace_back(height + tile.window, tile);
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
    std::size_t key = found[i].second.window;
    for (int dim = 0; dim < kDims; ++dim) {
      key = key * divisors_[dim].size() + found[i].second.at[dim];
    }
    index_[key] = static_cast<std::int32_t>(i);
  }
  layers_.push_back(static_cast<std::int32_t>(tiles_.size()));
  for (Tile& listed : tiles_) fill_in(listed);
  const Tile& base = tiles_.back();
  const double whole = tiles_.front().elements[kOutput];
  for (int t = 0; t < kTensors; ++t) demand_[t] = trips_ * base.elements[t];
  demand_[kOutput] = 2 * demand_[kOutput] - whole;
}

double Tiles::input_elements(const Tile& tile) const {
  const Layer& layer = problem_.layer;
  double total = static_cast<double>(extent(kC, tile.at[kC]) * extent(kB, tile.at[kB]));
  for (int i = 0; i < 2; ++i) {
    const auto window = tile.window ? layer.window[i] : layer.base_window[i];
    total *= columns(static_cast<double>(extent(kX + i, tile.at[kX + i])),
                     static_cast<double>(window), static_cast<double>(layer.stride[i]));
  }
  return total;
}

void Tiles::fill_in(Tile& tile) const {
  const Layer& layer = problem_.layer;
  double volume = 1;
  std::array<double, kDims> size;
  for (int dim = 0; dim < kDims; ++dim) {
    volume *= static_cast<double>(divisors_[dim][tile.at[dim]]);
    size[dim] = static_cast<double>(extent(dim, tile.at[dim]));
  }
  double window = 1;
  for (int i = 0; i < 2; ++i) {
    const auto inside = tile.window ? layer.window[i] : layer.base_window[i];
    volume *= static_cast<double>(inside / layer.base_window[i]);
    window *= static_cast<double>(inside);
  }
  tile.outside = trips_ / volume;
  tile.elements[kInput] = input_elements(tile);
  tile.elements[kKernel] = layer.kernel ? size[kC] * size[kK] * window : 0;
  tile.elements[kOutput] = size[kX] * size[kY] * size[kK] * size[kB];
  for (int t = 0; t < kTensors; ++t) tile.fill[t] = tile.outside * tile.elements[t];
  // Every partial sum but the first is also read back.
  const double whole = static_cast<double>(layer.extent[kX] * layer.extent[kY]) *
                       static_cast<double>(layer.extent[kK] * layer.extent[kB]);
  tile.fill[kOutput] = 2 * tile.fill[kOutput] - whole;
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
      const double bytes = elements * problem_.element_bytes;
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

void Tiles::list_steps() {
  out_begin_.push_back(0);
  for (std::int32_t from = 0; from < static_cast<std::int32_t>(tiles_.size()); ++from) {
    const Tile& tile = tiles_[from];
    for (int dim = 0; dim < kDims; ++dim) {
      if (mirrors_ && dim == kY && tile.at[kX] == tile.at[kY]) continue;
      const std::int64_t size = divisors_[dim][tile.at[dim]];
      for (std::uint8_t at = 0; at < tile.at[dim]; ++at) {
        if (size % divisors_[dim][at]) continue;
        Position inner = tile.at;
        inner[dim] = at;
        const bool mirrored = mirrors_ && inner[kX] < inner[kY];
        out_.push_back({from, index(inner, tile.window), static_cast<std::int8_t>(dim),
                        mirrored});
      }
    }
    if (tile.window) out_.push_back({from, index(tile.at, false), kF, false});
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
