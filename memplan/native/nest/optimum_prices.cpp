// The memories that tiles may be kept in, and what these cost.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "nest/optimum_tiles.h"

namespace memplan::nest::optimum {

namespace {

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
