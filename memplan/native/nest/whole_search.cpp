#include "nest/whole_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>

#include "nest/whole_cost.h"
#include "parallel.h"

namespace memplan::nest::whole {
namespace {

// Loops beyond this are not added.
constexpr std::size_t kLong = 24;
// Extents tried on either side of one, where two are changed at once.
constexpr int kNear = 3;

template <class T>
std::size_t drawn(const T& from, std::mt19937_64& draw) {
  return static_cast<std::size_t>(draw() % std::size(from));
}

// The moves there are: a loop elsewhere, of another extent, one more, one less.
class Moves {
 public:
  using Draw = std::mt19937_64;
  using Offer = std::function<bool(Nest&)>;

  explicit Moves(const Cost& cost) {
    for (int dim = 0; dim < kAxes; ++dim) {
      size_[dim] = cost.size(dim);
      base_[dim] = cost.base(dim);
      striped_[dim] = cost.striped(dim);
      if (size_[dim] == base_[dim]) continue;
      dims_.push_back(dim);
      const std::int64_t units = (size_[dim] + base_[dim] - 1) / base_[dim];
      auto& own = extents_[dim];
      for (std::int64_t n = 1; n < units; ++n) {
        const std::int64_t visits = (units + n - 1) / n;
        const bool least = n == 1 || (units + n - 2) / (n - 1) > visits;
        if (least || units % n == 0) own.push_back(n * base_[dim]);
      }
    }
  }

  // The nest without loops of one trip, and loops of one dimension side by side as
  // one, unless a stripe may lie between them; extents ascend in each dimension and
  // end with its size.
  void tidy(Nest& nest) const {
    for (const int dim : dims_) {
      std::array<std::int64_t, kMostLoops> found;
      int count = 0;
      for (const Loop& loop : nest) {
        if (loop.dim == dim) found[count++] = loop.extent;
      }
      std::sort(found.begin(), found.begin() + count);
      if (count) found[count - 1] = size_[dim];
      int next = 0;
      for (Loop& loop : nest) {
        if (loop.dim == dim) loop.extent = found[next++];
      }
    }
    std::array<std::int64_t, kAxes> reached = base_;
    std::size_t kept = 0;
    for (const Loop loop : nest) {
      if (loop.extent <= reached[loop.dim]) continue;
      reached[loop.dim] = loop.extent;
      if (kept && nest[kept - 1].dim == loop.dim && !striped_[loop.dim]) {
        nest[kept - 1] = loop;
      } else {
        nest[kept++] = loop;
      }
    }
    nest.resize(kept);
  }

  // One of them, at random.
  void random(Nest& nest, Draw& draw) const {
    if (nest.empty()) return;
    switch (draw() % 8) {
      case 0:
      case 1:
      case 2: resize(nest, draw); break;
      case 3: insert(nest, draw); break;
      case 4: {
        const std::size_t place = drawn(nest, draw);
        if (!outermost(nest, place)) {
          nest.erase(nest.begin() + static_cast<std::ptrdiff_t>(place));
        }
        break;
      }
      case 5: {
        const std::size_t place = drawn(nest, draw);
        if (place) std::swap(nest[place - 1], nest[place]);
        break;
      }
      default: {
        const std::size_t from = drawn(nest, draw), to = drawn(nest, draw);
        const Loop loop = nest[from];
        nest.erase(nest.begin() + static_cast<std::ptrdiff_t>(from));
        nest.insert(nest.begin() + static_cast<std::ptrdiff_t>(to), loop);
      }
    }
    tidy(nest);
  }

  // Calls offer(changed) with every nest that one move leads to, and with those of two
  // small changes of extents, until it returns true.
  bool any(const Nest& nest, const Offer& offer) const {
    const auto tidied = [&](Nest& changed) {
      tidy(changed);
      return offer(changed);
    };
    return resized(nest, tidied) || elsewhere(nest, tidied) || inserted(nest, tidied) ||
           both(nest, tidied);
  }

 private:
  bool outermost(const Nest& nest, std::size_t place) const {
    return nest[place].extent == size_[nest[place].dim];
  }
  // The extents around one: those worth trying, and one step of the datapath's.
  std::vector<std::int64_t> near(int dim, std::int64_t extent) const {
    const auto& own = extents_[dim];
    const auto at = std::ranges::lower_bound(own, extent) - own.begin();
    std::vector<std::int64_t> found;
    const auto count = static_cast<std::ptrdiff_t>(own.size());
    for (auto i = std::max<std::ptrdiff_t>(at - kNear, 0);
         i < std::min<std::ptrdiff_t>(at + kNear + 1, count); ++i) {
      if (own[i] != extent) found.push_back(own[i]);
    }
    for (const std::int64_t one : {extent - base_[dim], extent + base_[dim]}) {
      if (one > 0 && one < size_[dim]) found.push_back(one);
    }
    return found;
  }
  void resize(Nest& nest, Draw& draw) const {
    Loop& loop = nest[drawn(nest, draw)];
    if (extents_[loop.dim].empty()) return;
    if (loop.extent == size_[loop.dim]) return insert(nest, draw);
    if (draw() % 2) {
      loop.extent = extents_[loop.dim][drawn(extents_[loop.dim], draw)];
      return;
    }
    const auto around = near(loop.dim, loop.extent);
    if (!around.empty()) loop.extent = around[drawn(around, draw)];
  }
  void insert(Nest& nest, Draw& draw) const {
    const int dim = dims_[drawn(dims_, draw)];
    if (nest.size() >= kLong || extents_[dim].empty()) return;
    const std::int64_t extent = extents_[dim][drawn(extents_[dim], draw)];
    const auto place = static_cast<std::ptrdiff_t>(draw() % (nest.size() + 1));
    nest.insert(nest.begin() + place, {dim, extent});
  }
  bool elsewhere(const Nest& nest, const Offer& offer) const {
    for (std::size_t from = 0; from < nest.size(); ++from) {
      for (std::size_t to = 0; to < nest.size(); ++to) {
        if (from == to) continue;
        Nest changed = nest;
        changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(from));
        changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(to), nest[from]);
        if (offer(changed)) return true;
      }
      if (outermost(nest, from)) continue;
      Nest changed = nest;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(from));
      if (offer(changed)) return true;
    }
    return false;
  }
  bool resized(const Nest& nest, const Offer& offer) const {
    for (std::size_t place = 0; place < nest.size(); ++place) {
      if (outermost(nest, place)) continue;
      const auto [dim, extent] = nest[place];
      auto choices = extents_[dim];
      for (int step = -4; step <= 4; ++step) {
        const std::int64_t one = extent + step * base_[dim];
        if (one > 0 && one < size_[dim]) choices.push_back(one);
      }
      for (const std::int64_t choice : choices) {
        Nest changed = nest;
        changed[place].extent = choice;
        if (offer(changed)) return true;
      }
    }
    return false;
  }
  bool inserted(const Nest& nest, const Offer& offer) const {
    if (nest.size() >= kLong) return false;
    for (const int dim : dims_) {
      for (const std::int64_t extent : extents_[dim]) {
        for (std::size_t place = 0; place <= nest.size(); ++place) {
          Nest changed = nest;
          const Loop more{dim, extent};
          changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(place), more);
          if (offer(changed)) return true;
        }
      }
    }
    return false;
  }
  bool both(const Nest& nest, const Offer& offer) const {
    for (std::size_t one = 0; one < nest.size(); ++one) {
      if (outermost(nest, one)) continue;
      const auto first = near(nest[one].dim, nest[one].extent);
      for (std::size_t other = one + 1; other < nest.size(); ++other) {
        if (outermost(nest, other)) continue;
        for (const std::int64_t second : near(nest[other].dim, nest[other].extent)) {
          for (const std::int64_t extent : first) {
            Nest changed = nest;
            changed[one].extent = extent;
            changed[other].extent = second;
            if (offer(changed)) return true;
          }
        }
      }
    }
    return false;
  }

  std::array<std::int64_t, kAxes> size_{}, base_{};
  std::array<bool, kAxes> striped_{};
  std::vector<int> dims_;  // that need a loop
  // By dimension, extents that are worth trying, ascending.
  std::array<std::vector<std::int64_t>, kAxes> extents_;
};

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
    Moves::Draw draw(seed);
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
  for_each(0, count, threads, [&](std::int32_t i) {
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
    for_each(0, 2 * count, threads, [&](std::int32_t i) {
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
