#include "nest/optimum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "nest/optimum_bound.h"
#include "nest/optimum_search.h"
#include "nest/optimum_tiles.h"
#include "require.h"

namespace memplan::nest::optimum {
namespace {

// Values of the bounds, each round's if the one before left a gap: 4, 32, 256 MiB.
constexpr std::size_t kValues[] = {1u << 20, 1u << 23, 1u << 26};
// A gap that finer bounds close sooner than more labels.
constexpr double kWide = 0.01;
// Labels for each tile, pass by pass; all that there are only after the last round.
constexpr std::size_t kWidths[] = {1, 8, 64};
constexpr int kMostPoints = 48;
constexpr int kSteps = 6;  // of the last round, where it may take long
constexpr double kNever = std::numeric_limits<double>::infinity();
// Tiles of the whole space: of given memories, whose prices are few, and of others.
constexpr std::size_t kMostTiles = 400'000, kMostTilesMade = 40'000;
constexpr std::size_t kFewTiles = 4'000, kFewValues = 1u << 21;
// Values of their bounds, which only fine ones make close: 128 and 256 MiB.
constexpr std::size_t kWholeValues = 1u << 25, kWholeValuesMade = 1u << 26;
// Labels in memory at a time, about 2 GiB.
constexpr std::size_t kMostLabels = 40'000'000;

Grid fitting_grid(const Tiles& tiles, std::size_t values, const Stop& stop) {
  for (int points = kMostPoints;; --points) {
    if (stop()) throw Stopped();
    Grid grid(tiles, points);
    if (points <= 3 || grid.values(tiles) <= values) return grid;
  }
}

// A tile that is kept, and the move that it is used again in, or slides along.
struct KeptAt {
  int tensor, code;
  std::size_t move;
  bool slides;
};

// The tiles that a pass keeps. Each for a whole run of loops that use it again: from
// the outermost of them, where the pass may have put that off to an inner one. One that
// slides does along its one loop.
std::vector<KeptAt> kept_tiles(const Tiles& tiles, const std::vector<Move>& moves) {
  std::vector<KeptAt> found;
  const auto from = [&](std::size_t move) -> const Tile& {
    return tiles.tiles()[tiles.step(moves[move].step).from];
  };
  for (std::size_t i = 0; i < moves.size(); ++i) {
    for (int t = 0; t < kTensors; ++t) {
      const int code = moves[i].codes[t];
      const int before = i > 0 ? moves[i - 1].codes[t] : tiles.main_code(t);
      if (code == before) continue;
      const bool slides = moves[i].slides && t == kInput;
      std::size_t first = i;
      while (!slides && first > 0 &&
             from(first - 1).elements[t] == from(i).elements[t]) {
        --first;
      }
      found.push_back({t, code, first, slides});
    }
  }
  return found;
}

// pJ with these tiles kept, outermost first.
double energy_of(const Tiles& tiles, const std::vector<Move>& moves,
                 const std::vector<KeptAt>& kept) {
  double total = 0;
  std::array<double, kTensors> price;
  for (int t = 0; t < kTensors; ++t) price[t] = tiles.prices(t).back();
  for (const auto& [t, code, move, slides] : kept) {
    const double pj = tiles.prices(t)[code];
    const double served = price[t] + tiles.problem().filling(pj);
    total += tiles.tiles()[tiles.step(moves[move].step).from].fill[t] * served;
    price[t] = pj;
  }
  for (int t = 0; t < kTensors; ++t) total += tiles.demand(t) * price[t];
  return total;
}

// The loops that a pass's moves stand for, innermost first, and the tiles kept.
void write_down(const Tiles& tiles, const PassResult& pass, Optimum& found) {
  const std::vector<KeptAt> kept = kept_tiles(tiles, pass.moves);
  found.energy = energy_of(tiles, pass.moves, kept);
  found.loops.clear();
  found.kept.clear();
  std::vector<int> loop_of;
  // Whether a stripe, or a tile that slides, begins at a move.
  std::vector<bool> apart(pass.moves.size() + 1);
  for (const auto& [t, code, move, slides] : kept) {
    if (t == kInput) apart[move] = true;
    if (slides) apart[move + 1] = true;
  }
  bool mirrored = false;
  for (std::size_t i = 0; i < pass.moves.size(); ++i) {
    const Step& step = tiles.step(pass.moves[i].step);
    int dim = step.dim;
    const auto at = tiles.tiles()[step.from].at;
    const std::int64_t extent = dim == kF ? 0 : tiles.extent(dim, at[dim]);
    if (mirrored) dim = mirror(dim);
    mirrored ^= step.mirrored;
    // Loops of one dimension side by side are one loop, unless one of these lies between.
    if (found.loops.empty() || found.loops.back().dim != dim || apart[i]) {
      found.loops.push_back({dim, extent});
    }
    loop_of.push_back(static_cast<int>(found.loops.size()) - 1);
  }
  const int last = static_cast<int>(found.loops.size()) - 1;
  for (const auto& [t, code, move, slides] : kept) {
    const Step& step = tiles.step(pass.moves[move].step);
    const Tile& tile = tiles.tiles()[slides ? step.to : step.from];
    found.kept.push_back(
        {t, last - loop_of[move], tile.elements[t], tiles.prices(t)[code], slides});
  }
  std::ranges::reverse(found.loops);
  std::ranges::reverse(found.kept);
}

// Runs one pass, for energies below `below` and what was found so far, and says whether
// to go on.
bool improve(const Tiles& tiles, const Bound& bound, int threads, std::size_t width,
             double below, const Stop& stop, Optimum& found) {
  const double incumbent = std::min(found.energy, below);
  const PassResult pass =
      run_pass(tiles, bound, threads, incumbent, width, kMostLabels, stop);
  found.labels += pass.labels;
  if (pass.stopped) return false;
  if (pass.improved) write_down(tiles, pass, found);
  found.lower_bound = std::max(found.lower_bound, pass.lower_bound);
  found.proved = found.lower_bound >= (pass.improved ? pass.energy : found.energy);
  if (found.proved) found.lower_bound = found.energy;
  return !found.proved;
}

// Passes with all labels that may lead below ever more energy: the first are short, and
// each raises the bound, should there be no time for the last.
void finish(const Tiles& tiles, const Bound& bound, int threads, const Stop& stop,
            Optimum& found) {
  const bool by_steps = tiles.problem().space == Space::kWhole;
  const double low = found.lower_bound, high = found.energy;
  const bool apart = by_steps && low > 0 && std::isfinite(high);
  for (int step = apart ? 1 : kSteps; step <= kSteps; ++step) {
    const double part = static_cast<double>(step) / kSteps;
    const double below = step < kSteps ? low * std::pow(high / low, part) : high;
    if (!improve(tiles, bound, threads, 0, below, stop, found)) return;
  }
}

// How many tiles there may be, and values of each round's bounds; whether the last
// round goes on until nothing is left out.
struct Effort {
  std::size_t tiles;
  std::vector<std::size_t> values;
  bool thorough = true;
};

// From one set of tiles, with ever finer bounds.
void search_tiles(const Problem& problem, const Effort& effort, int threads,
                  const Stop& stop, Optimum& found) {
  const Tiles tiles(problem, effort.tiles, stop);
  for (const std::size_t values : effort.values) {
    const Grid grid = fitting_grid(tiles, values, stop);
    const Bound bound(tiles, grid, threads, stop);
    if (!bound.complete()) return;
    Codes outside;
    for (int t = 0; t < kTensors; ++t) outside[t] = tiles.main_code(t);
    found.lower_bound = std::max(found.lower_bound, bound(0, kFresh, outside));
    const bool finest = grid.exact() || grid.most() == kMostPoints ||
                        values == effort.values.back();
    for (const std::size_t width : kWidths) {
      if (!improve(tiles, bound, threads, width, kNever, stop, found)) return;
      if (!finest && found.lower_bound < (1 - kWide) * found.energy) break;
    }
    if (finest) {
      if (effort.thorough) finish(tiles, bound, threads, stop, found);
      break;
    }
  }
}

}  // namespace

Optimum find_optimum(const Problem& problem, double incumbent, int threads,
                     const Stop& stop) {
  require(problem.pools.size() <= kMostPools, "too many shared memories");
  const Effort divisors{kMostTiles, {std::begin(kValues), std::end(kValues)}};
  const auto search = [&](const Effort& effort) {
    Optimum found;
    found.energy = incumbent;
    try {
      search_tiles(problem, effort, threads, stop, found);
    } catch (const Stopped&) {  // what was found before stands
    }
    return found;
  };
  if (problem.space != Space::kWhole) return search(divisors);
  // What few tiles tell is soon there, should there be no time for more.
  const Optimum rough = search({kFewTiles, {kFewValues}, false});
  if (rough.lower_bound >= incumbent || stop()) return rough;
  const bool made = !problem.memories[kInput].knots.empty();
  Optimum found = search(made ? Effort{kMostTilesMade, {kWholeValuesMade}}
                              : Effort{kMostTiles, {kWholeValues}});
  found.labels += rough.labels;
  found.lower_bound = std::max(found.lower_bound, rough.lower_bound);
  if (found.loops.empty()) found.loops = rough.loops;
  return found;
}

}  // namespace memplan::nest::optimum
