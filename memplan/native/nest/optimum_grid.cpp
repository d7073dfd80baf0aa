// Prices at which bounds are worked out.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nest/optimum_bound.h"

namespace memplan::nest::optimum {
namespace {

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

}  // namespace memplan::nest::optimum
