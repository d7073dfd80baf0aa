// The extents of tiles.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "nest/optimum_tiles.h"

namespace memplan::nest::optimum {
namespace {

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

}  // namespace

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

void Tiles::coarsen(std::size_t most) {
  std::array<double, kAxes> ratio;
  ratio.fill(1);
  const auto all = extents_;
  const auto visits = visits_;
  const auto overlap = overlap_;
  const auto tiles = [&] {
    double product = mirrors_ ? 0.5 : 1;
    for (const auto& extents : extents_) product *= static_cast<double>(extents.size());
    return product;
  };
  while (tiles() > static_cast<double>(most)) {
    const auto widest = std::ranges::max_element(
        extents_, {}, [](const auto& extents) { return extents.size(); });
    const auto dim = static_cast<std::size_t>(widest - extents_.begin());
    if (extents_[dim].size() <= 3) return;
    ratio[dim] *= 1.05;
    const std::size_t last = all[dim].size() - 1;
    extents_[dim].clear(), visits_[dim].clear(), overlap_[dim].clear();
    for (std::size_t at = 0; at <= last;) {
      const std::size_t first = at++;
      double least = overlap[dim][first];
      while (first > 0 && at < last &&
             static_cast<double>(all[dim][at]) <
                 ratio[dim] * static_cast<double>(all[dim][first])) {
        least = std::min(least, overlap[dim][at++]);
      }
      extents_[dim].push_back(all[dim][first]);
      visits_[dim].push_back(visits[dim][at - 1]);
      overlap_[dim].push_back(least);
    }
  }
}

}  // namespace memplan::nest::optimum
