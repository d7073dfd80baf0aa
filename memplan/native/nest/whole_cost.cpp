#include "nest/whole_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace memplan::nest::whole {
namespace {

using namespace optimum;

// Tiles of one dimension: sizes, and how many there are of each. With every loop there
// is at most one size more.
struct Tiles {
  std::array<std::pair<std::int64_t, std::int64_t>, kMostLoops + 2> rows;
  int count = 0;

  void add(std::int64_t size, std::int64_t times) {
    for (int i = 0; i < count; ++i) {
      if (rows[i].first == size) {
        rows[i].second += times;
        return;
      }
    }
    rows[count++] = {size, times};
  }

  Tiles split(std::int64_t extent) const {
    Tiles found;
    for (int i = 0; i < count; ++i) {
      const auto [size, times] = rows[i];
      if (size >= extent) found.add(extent, size / extent * times);
      if (size % extent) found.add(size % extent, times);
    }
    return found;
  }
};

// What is known of one extent: how many tiles, and the columns that each position of
// the image adds to the input's tiles where it is the window's.
struct Level {
  std::int64_t extent = 1;
  double visits = 1, overlap = 1;
};

}  // namespace

// The loops from the inside out: how far each dimension is covered.
struct Cost::Walk {
  explicit Walk(const Problem& own) : problem(own) {}

  std::array<std::array<Level, kMostLoops + 1>, kAxes> levels;
  std::array<int, kAxes> at{};
  std::array<double, kAxes> all;
  std::array<double, 2> stride;
  const Problem& problem;

  const Level& now(int dim) const { return levels[dim][at[dim]]; }
  double extent(int dim) const { return static_cast<double>(now(dim).extent); }
  double visits(int dim) const { return now(dim).visits; }

  // Whether tiles that follow each other along a loop overlap in the input.
  bool slides(int dim) const {
    return dim <= kY && extent(kFw + dim - kX) > stride[dim - kX];
  }
  Buffer input() const {
    Buffer found{extent(kC) * extent(kB), all[kC] * all[kB] * visits(kK)};
    for (int i = 0; i < 2; ++i) {
      const double along = extent(kX + i), window = extent(kFw + i);
      found.elements *= (along - 1) * std::min(stride[i], window) + window;
      found.outward *= visits(kX + i) * all[kFw + i] +
                       (all[kX + i] - visits(kX + i)) * now(kFw + i).overlap;
    }
    return found;
  }
  Buffer kernel() const {
    return {extent(kC) * extent(kK) * extent(kFw) * extent(kFh),
            all[kC] * all[kK] * all[kFw] * all[kFh] * visits(kX) * visits(kY) *
                visits(kB)};
  }
  Buffer output() const {
    return {extent(kX) * extent(kY) * extent(kK) * extent(kB),
            all[kX] * all[kY] * all[kK] * all[kB] *
                problem.passes(visits(kC) * visits(kFw) * visits(kFh))};
  }
  Buffer buffer(int tensor) const {
    return tensor == kInput ? input() : tensor == kKernel ? kernel() : output();
  }
};

Cost::Cost(const Problem& problem)
    : problem_(problem), size_(problem.layer.sizes()), base_(problem.layer.bases()) {
  for (int t = 0; t < kTensors; ++t) {
    for (const Knot& knot : problem_.memories[t].knots) {
      log_bytes_[t].push_back(std::log(knot.bytes));
      log_pj_[t].push_back(std::log(knot.pj));
    }
  }
}

double Cost::operator()(std::span<const Loop> loops, double limit) const {
  Walk walk(problem_);
  std::array<int, kAxes> depth{};
  for (const Loop& loop : loops) {
    walk.levels[loop.dim][++depth[loop.dim]].extent = loop.extent;
  }
  for (int dim = 0; dim < kAxes; ++dim) {
    walk.all[dim] = static_cast<double>(size_[dim]);
    auto& own = walk.levels[dim];
    own[0].extent = base_[dim];
    const std::int64_t stride = is_window(dim) ? problem_.layer.stride[dim - kFw] : 0;
    Tiles tiles;
    tiles.add(size_[dim], 1);
    for (int level = depth[dim]; level >= 0; --level) {
      tiles = tiles.split(own[level].extent);
      std::int64_t visits = 0, overlap = 0;
      for (int i = 0; i < tiles.count; ++i) {
        const auto [size, times] = tiles.rows[i];
        visits += times;
        overlap += std::min(size, stride) * times;
      }
      own[level].visits = static_cast<double>(visits);
      own[level].overlap = static_cast<double>(overlap);
    }
  }
  for (int i = 0; i < 2; ++i) {
    walk.stride[i] = static_cast<double>(problem_.layer.stride[i]);
  }
  std::array<Buffers, kTensors> buffers;
  for (int t = 0; t < kTensors; ++t) buffers[t].demand = walk.buffer(t).outward;
  const unsigned present = problem_.layer.kernel ? 7u : 5u;
  unsigned open = 0;
  bool by_kernels = false;  // whether a loop of K began the input's run
  const auto close = [&](unsigned tensors) {
    for (int t = 0; t < kTensors; ++t) {
      if (tensors >> t & 1) buffers[t].rows[buffers[t].count++] = walk.buffer(t);
    }
    open &= ~tensors;
  };
  for (std::size_t i = 0; i < loops.size(); ++i) {
    const int dim = loops[i].dim;
    const unsigned again = reused_along(dim, problem_.layer.kernel);
    unsigned ends = open & ~again;
    if (is_window(dim) && by_kernels) ends |= open & 1u << kInput;
    if (ends) close(ends);
    if (again >> kInput & 1 && !(open >> kInput & 1)) by_kernels = dim == kK;
    open |= again;
    ++walk.at[dim];
    // A stripe; where a loop of K comes next, its run has the same.
    const bool runs_on = i + 1 < loops.size() && loops[i + 1].dim == kK;
    if (walk.slides(dim) && !runs_on) close(1u << kInput);
  }
  close(open);
  // As if no tensor competed with another for bytes.
  Part alone{0, {}};
  for (int t = 0; t < kTensors; ++t) {
    if (!(present >> t & 1)) continue;
    const Part own = least(t, buffers[t]);
    alone.pj += own.pj;
    for (std::size_t p = 0; p < own.taken.size(); ++p) alone.taken[p] += own.taken[p];
  }
  return alone.pj >= limit || fits(alone) ? alone.pj : combined(buffers);
}

double Cost::price(int tensor, double bytes) const {
  const auto& at = log_bytes_[tensor];
  const auto& pj = log_pj_[tensor];
  const double where = std::log(bytes);
  if (where <= at.front()) return std::exp(pj.front());
  if (where >= at.back()) return std::exp(pj.back());
  const auto i = std::upper_bound(at.begin(), at.end(), where) - at.begin();
  const double part = (where - at[i - 1]) / (at[i] - at[i - 1]);
  return std::exp(pj[i - 1] + part * (pj[i] - pj[i - 1]));
}

// The memory of least energy that holds so many bytes, and its pool.
std::pair<double, int> Cost::cheapest(int tensor, double bytes) const {
  const Memories& memories = problem_.memories[tensor];
  std::pair<double, int> least{std::numeric_limits<double>::infinity(), -1};
  const auto offer = [&](double pj, int pool) {
    if (pool >= 0 && bytes > problem_.pools[pool]) return;
    if (pj < least.first) least = {pj, pool};
  };
  if (!memories.knots.empty() && bytes <= memories.largest) {
    offer(price(tensor, bytes), memories.pool);
  }
  for (const auto& level : memories.levels) {
    if (bytes <= level.bytes) offer(level.pj, level.pool);
  }
  return least;
}

// Least energy of one tensor, as if no other competed for its memories.
Cost::Part Cost::least(int tensor, const Buffers& own) const {
  const double main_pj = problem_.memories[tensor].main_pj;
  std::array<Part, kMostLoops> ends;  // where this buffer is the last, but for what
                                      // leaves it
  Part best{own.demand * main_pj, {}};
  for (int i = 0; i < own.count; ++i) {
    const Buffer& buffer = own.rows[i];
    const double bytes = problem_.bytes(tensor, buffer.elements);
    const auto [pj, pool] = cheapest(tensor, bytes);
    ends[i].pj = std::numeric_limits<double>::infinity();
    if (!(pj < main_pj)) continue;
    Part here{own.demand * pj, {}};
    for (int j = 0; j < i; ++j) {
      const double inside = ends[j].pj + own.rows[j].outward * pj;
      if (inside < here.pj) here = {inside, ends[j].taken};
    }
    here.pj += buffer.outward * problem_.filling(pj);
    if (pool >= 0) here.taken[pool] += bytes;
    ends[i] = here;
    if (const double all = here.pj + buffer.outward * main_pj; all < best.pj) {
      best = {all, here.taken};
    }
  }
  return best;
}

bool Cost::fits(const Part& part) const {
  for (std::size_t p = 0; p < problem_.pools.size(); ++p) {
    if (part.taken[p] > problem_.pools[p]) return false;
  }
  return true;
}

// Drops those that another beats in energy and bytes; by ascending energy.
void Cost::unbeaten(std::vector<Part>& parts) const {
  std::ranges::sort(parts, {}, &Part::pj);
  std::size_t kept = 0;
  for (const Part& part : parts) {
    const bool beaten = std::any_of(parts.data(), parts.data() + kept, [&](auto& one) {
      bool less = true;
      for (std::size_t p = 0; p < problem_.pools.size(); ++p) {
        less &= one.taken[p] <= part.taken[p];
      }
      return less;
    });
    if (!beaten) parts[kept++] = part;
  }
  parts.resize(kept);
}

// All choices of one tensor's buffers and memories that are worth having.
void Cost::parts(int tensor, const Buffers& own, std::vector<Part>& found) const {
  const Memories& memories = problem_.memories[tensor];
  std::vector<std::pair<double, std::vector<Part>>> ends{{own.demand, {Part{}}}};
  std::vector<std::pair<double, int>> options;
  for (int i = 0; i < own.count; ++i) {
    const Buffer& buffer = own.rows[i];
    const double bytes = problem_.bytes(tensor, buffer.elements);
    options.clear();
    if (!memories.knots.empty() && bytes <= memories.largest) {
      options.emplace_back(price(tensor, bytes), memories.pool);
    }
    for (const auto& level : memories.levels) {
      if (bytes <= level.bytes) options.emplace_back(level.pj, level.pool);
    }
    std::vector<Part> here;
    for (const auto& [pj, pool] : options) {
      if (pj >= memories.main_pj) continue;
      for (const auto& [outward, parts] : ends) {
        const double more = outward * pj + buffer.outward * problem_.filling(pj);
        for (Part part : parts) {
          part.pj += more;
          if (pool >= 0) part.taken[pool] += bytes;
          if (fits(part)) here.push_back(part);
        }
      }
    }
    unbeaten(here);
    ends.emplace_back(buffer.outward, std::move(here));
  }
  found.clear();
  for (const auto& [outward, parts] : ends) {
    for (Part part : parts) {
      part.pj += outward * memories.main_pj;
      found.push_back(part);
    }
  }
  unbeaten(found);
}

// Least energy of all tensors where they share memories.
double Cost::combined(const std::array<Buffers, kTensors>& buffers) const {
  std::array<std::vector<Part>, kTensors> all;
  for (int t = 0; t < kTensors; ++t) {
    if (t == kKernel && !problem_.layer.kernel) {
      all[t] = {Part{}};
    } else {
      parts(t, buffers[t], all[t]);
    }
  }
  double best = std::numeric_limits<double>::infinity();
  const double last = all[kOutput].front().pj;
  for (const Part& input : all[kInput]) {
    if (input.pj + all[kKernel].front().pj + last >= best) break;
    for (const Part& kernel : all[kKernel]) {
      if (input.pj + kernel.pj + last >= best) break;
      for (const Part& output : all[kOutput]) {
        const double total = input.pj + kernel.pj + output.pj;
        if (total >= best) break;
        Part both{total, {}};
        for (std::size_t p = 0; p < both.taken.size(); ++p) {
          both.taken[p] = input.taken[p] + kernel.taken[p] + output.taken[p];
        }
        if (fits(both)) best = total;
      }
    }
  }
  return best;
}

}  // namespace memplan::nest::whole
