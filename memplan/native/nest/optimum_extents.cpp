// The extents of tiles.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
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

}  // namespace memplan::nest::optimum
