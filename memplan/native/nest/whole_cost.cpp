#include "nest/whole_cost.h"

#include <algorithm>
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
    Buffer found{extent(kC) * extent(kB), all[kC] * all[kB] * visits(kK), false};
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
                visits(kB),
            false};
  }
  Buffer output() const {
    return {extent(kX) * extent(kY) * extent(kK) * extent(kB),
            all[kX] * all[kY] * all[kK] * all[kB] *
                problem.passes(visits(kC) * visits(kFw) * visits(kFh)),
            false};
  }
  Buffer buffer(int tensor) const {
    return tensor == kInput ? input() : tensor == kKernel ? kernel() : output();
  }
};

Cost::Cost(const Problem& problem)
    : problem_(problem), pricing_(problem), size_(problem.layer.sizes()),
      base_(problem.layer.bases()) {}

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
  unsigned open = 0;
  bool by_kernels = false;  // whether a loop of K began the input's run
  const auto close = [&](unsigned tensors) {
    for (int t = 0; t < kTensors; ++t) {
      if (tensors >> t & 1) buffers[t].add(walk.buffer(t));
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
    const bool slides = pricing_.sliding() && walk.slides(dim);
    const double inside = slides ? walk.input().elements : 0;
    ++walk.at[dim];
    if (slides) buffers[kInput].add({inside, walk.input().outward, true});
    // A stripe; where a loop of K comes next, its run has the same.
    const bool runs_on = i + 1 < loops.size() && loops[i + 1].dim == kK;
    if (walk.slides(dim) && !runs_on) close(1u << kInput);
  }
  close(open);
  return pricing_(buffers, limit);
}

}  // namespace memplan::nest::whole
