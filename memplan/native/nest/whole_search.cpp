#include "nest/whole_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>

#include "nest/optimum_parallel.h"
#include "nest/whole_cost.h"
#include "nest/whole_moves.h"

namespace memplan::nest::whole {
namespace {

// Of one round of annealing: moves, and how much worse than it was a nest may get, in
// the beginning and in the end.
constexpr int kMoves = 100'000;
constexpr double kHot = 0.15, kCold = 0.0005;
constexpr int kLook = 256;  // nests between two looks at the clock
constexpr double kSame = 1e-12;
constexpr double kAny = std::numeric_limits<double>::infinity();

// One descent or one round.
class Climb {
 public:
  Climb(const Cost& cost, const Moves& moves, double bound,
        const std::function<bool()>& stop)
      : cost_(cost), moves_(moves), bound_(bound * (1 + 1e-10)), stop_(stop) {}

  Found found;

  void start(const Nest& nest) {
    found.loops = nest;
    found.energy = cost_(nest, kAny);
    ++found.tried;
  }

  // Takes every move that helps, until none does.
  void descend() {
    bool better = true;
    while (better && !over()) {
      better = moves_.any(found.loops, [&](Nest& changed) {
        if (over()) return true;
        const double energy = price(changed, found.energy);
        if (energy >= found.energy * (1 - kSame)) return false;
        found.energy = energy;
        found.loops = changed;
        return true;
      });
    }
  }

  void anneal(std::uint64_t seed) {
    std::mt19937_64 draw(seed);
    Nest now = found.loops, next;
    double energy = found.energy, heat = kHot;
    const double cooling = std::pow(kCold / kHot, 1.0 / kMoves);
    for (int i = 0; i < kMoves && !over(); ++i, heat *= cooling) {
      next = now;
      moves_.random(next, draw);
      const double luck = (static_cast<double>(draw() >> 11) + 1) * 0x1p-53;
      const double most = energy * (1 - heat * std::log(luck));
      const double changed = price(next, most);
      if (changed >= most) continue;
      std::swap(now, next);
      energy = changed;
      if (energy >= found.energy * (1 - kSame)) continue;
      found.energy = energy;
      found.loops = now;
    }
  }

 private:
  double price(const Nest& nest, double limit) {
    ++found.tried;
    return cost_(nest, limit);
  }

  bool over() {
    if (found.complete && found.tried % kLook == 0 && stop_()) found.complete = false;
    return !found.complete || found.energy <= bound_;
  }

  const Cost& cost_;
  const Moves& moves_;
  const double bound_;
  const std::function<bool()>& stop_;
};

// The nest with loops of one dimension side by side as one where that costs no more.
Nest merged(const Cost& cost, Nest nest, double energy) {
  for (std::size_t place = 1; place < nest.size(); ++place) {
    if (nest[place - 1].dim != nest[place].dim) continue;
    Nest changed = nest;
    changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(place - 1));
    if (cost(changed, kAny) > energy * (1 + kSame)) continue;
    nest = std::move(changed);
    --place;
  }
  return nest;
}

void check(const Cost& cost, const Nest& nest) {
  std::array<std::int64_t, kAxes> reached;
  for (int dim = 0; dim < kAxes; ++dim) reached[dim] = cost.base(dim);
  bool right = nest.size() <= kMostLoops;
  for (const Loop& loop : nest) {
    right = right && 0 <= loop.dim && loop.dim < kAxes &&
            loop.extent > reached[loop.dim] && loop.extent <= cost.size(loop.dim);
    if (!right) break;
    reached[loop.dim] = loop.extent;
  }
  for (int dim = 0; dim < kAxes; ++dim) right = right && reached[dim] == cost.size(dim);
  if (!right) throw std::invalid_argument("a start is no nest of the layer");
}

// The best of all climbs.
Found climb(const Cost& cost, const std::vector<Nest>& starts, double bound, int first,
            int rounds, int threads, const std::function<bool()>& stop) {
  const Moves moves(cost);
  const auto count = static_cast<std::int32_t>(starts.size());
  std::vector<Found> ends(starts.size());
  Found best;
  const auto take = [&](const std::vector<Found>& all) {
    for (const Found& one : all) {
      best.tried += one.tried;
      best.complete = best.complete && one.complete;
      if (!best.loops.empty() && one.energy >= best.energy * (1 - kSame)) continue;
      best.energy = one.energy;
      best.loops = one.loops;
    }
  };
  optimum::for_each(0, count, threads, [&](std::int32_t i) {
    Climb climb(cost, moves, bound, stop);
    climb.start(starts[i]);
    climb.descend();
    ends[i] = climb.found;
  });
  take(ends);
  if (best.loops.empty() || best.energy <= bound * (1 + 1e-10) || !best.complete) {
    return best;
  }
  // Every other round goes on from the best nest so far, the others from a start.
  std::vector<Found> rows(2 * ends.size());
  Nest from = best.loops;
  for (int round = first; round < first + rounds; ++round) {
    optimum::for_each(0, 2 * count, threads, [&](std::int32_t i) {
      Climb climb(cost, moves, bound, stop);
      climb.start(i % 2 ? from : ends[i / 2].loops);
      climb.anneal(static_cast<std::uint64_t>(round) * 64 + i);
      climb.descend();
      rows[i] = climb.found;
    });
    take(rows);
    from = best.loops;
    if (best.energy <= bound * (1 + 1e-10) || !best.complete) break;
  }
  return best;
}

}  // namespace

Found find_nest(const optimum::Problem& problem, const std::vector<Nest>& starts,
                double bound, int first, int rounds, int threads,
                const std::function<bool()>& stop) {
  if (starts.empty()) throw std::invalid_argument("need a start");
  const Cost cost(problem);
  for (const Nest& nest : starts) check(cost, nest);
  Found best = climb(cost, starts, bound, first, rounds, threads, stop);
  best.loops = merged(cost, std::move(best.loops), best.energy);
  return best;
}

}  // namespace memplan::nest::whole
