// What one loop nest takes, of any extents and with the window's loops anywhere: its
// buffers, each in whichever memory holds it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "nest/optimum_problem.h"

namespace memplan::nest::whole {

using namespace optimum;

inline constexpr int kMostLoops = 32;

/// A buffer of one tensor: elements, and what passes between it and what is outside;
/// slides: whether it needs a memory that can have sliding buffers.
struct Buffer {
  double elements, outward;
  bool slides;
};

/// All of one tensor's, inside out, and what the datapath asks for.
struct Buffers {
  static constexpr int kMost = 2 * kMostLoops;

  std::array<Buffer, kMost> rows;
  int count = 0;
  double demand = 0;

  void add(const Buffer& buffer) { rows[count++] = buffer; }
};

/// What the tensors' buffers take in the memories of one problem: a choice that no other
/// one beats.
class Pricing {
 public:
  explicit Pricing(const Problem& problem) : problem_(problem) {
    const Memories& inputs = problem_.memories[kInput];
    sliding_ = inputs.slides || std::ranges::any_of(inputs.levels, &Level::slides);
    for (const Memories& memories : problem_.memories) {
      own_.emplace_back(memories.knots);
      last_.emplace_back(memories.last);
    }
  }

  /// Whether the input's memories can have sliding buffers.
  bool sliding() const { return sliding_; }

  /// pJ of all tensors. Where it is more than `limit`, what comes back may be less than
  /// it is, but not less than `limit`.
  double operator()(const std::array<Buffers, kTensors>& buffers, double limit) const {
    // As if no tensor competed with another for bytes.
    const unsigned present = problem_.layer.kernel ? 7u : 5u;
    Part alone{0, {}};
    for (int t = 0; t < kTensors; ++t) {
      if (!(present >> t & 1)) continue;
      const Part own = least(t, buffers[t]);
      alone.pj += own.pj;
      for (std::size_t p = 0; p < own.taken.size(); ++p) alone.taken[p] += own.taken[p];
    }
    return alone.pj >= limit || fits(alone) ? alone.pj : combined(buffers);
  }

 private:
  // Energy, and bytes of each pool.
  struct Part {
    double pj;
    std::array<double, kMostPools> taken;
  };

  // Knots by their logarithms.
  struct Curve {
    explicit Curve(const std::vector<Knot>& knots) {
      for (const Knot& knot : knots) {
        log_bytes.push_back(std::log(knot.bytes));
        log_pj.push_back(std::log(knot.pj));
      }
    }
    double operator()(double bytes) const {
      const double where = std::log(bytes);
      if (where <= log_bytes.front()) return std::exp(log_pj.front());
      if (where >= log_bytes.back()) return std::exp(log_pj.back());
      const auto i = std::ranges::upper_bound(log_bytes, where) - log_bytes.begin();
      const double part =
          (where - log_bytes[i - 1]) / (log_bytes[i] - log_bytes[i - 1]);
      return std::exp(log_pj[i - 1] + part * (log_pj[i] - log_pj[i - 1]));
    }

    std::vector<double> log_bytes, log_pj;
  };

  bool tells_last(int tensor) const { return !last_[tensor].log_bytes.empty(); }
  // Calls offer(pJ, pool) for every memory that holds a buffer of so many bytes. last: it
  // lies outermost.
  template <typename Offer>
  void offered(int tensor, const Buffer& buffer, double bytes, bool last,
               const Offer& offer) const {
    const Memories& memories = problem_.memories[tensor];
    const auto fit = [&](double pj, int pool) {
      const bool fits = pool < 0 || bytes <= problem_.pools[pool];
      if (fits && pj < memories.main_pj) offer(pj, pool);
    };
    if (!memories.knots.empty() && bytes <= memories.largest &&
        (memories.slides || !buffer.slides)) {
      const Curve& curve = last && tells_last(tensor) ? last_[tensor] : own_[tensor];
      fit(curve(bytes), memories.pool);
    }
    for (const auto& level : memories.levels) {
      const bool holds = bytes <= level.bytes && (level.slides || !buffer.slides);
      if (holds) fit(level.pj, level.pool);
    }
  }
  // Least energy of one tensor, as if no other competed for its memories.
  Part least(int tensor, const Buffers& own) const {
    constexpr double never = std::numeric_limits<double>::infinity();
    const double main_pj = problem_.memories[tensor].main_pj;
    // Where this buffer is the last, but for what leaves it.
    std::array<Part, Buffers::kMost> ends;
    Part best{own.demand * main_pj, {}};
    const auto end_at = [&](int i, bool last) {
      const Buffer& buffer = own.rows[i];
      const double bytes = problem_.bytes(tensor, buffer.elements);
      double pj = never;
      int pool = -1;
      offered(tensor, buffer, bytes, last, [&](double its, int from) {
        if (its < pj) pj = its, pool = from;
      });
      if (pj == never) return Part{never, {}};
      Part here{own.demand * pj, {}};
      for (int j = 0; j < i; ++j) {
        const double inside = ends[j].pj + own.rows[j].outward * pj;
        if (inside < here.pj) here = {inside, ends[j].taken};
      }
      here.pj += buffer.outward * problem_.filling(pj);
      if (pool >= 0) here.taken[pool] += bytes;
      return here;
    };
    for (int i = 0; i < own.count; ++i) {
      ends[i] = end_at(i, false);
      const Part last = tells_last(tensor) ? end_at(i, true) : ends[i];
      if (const double all = last.pj + own.rows[i].outward * main_pj; all < best.pj) {
        best = {all, last.taken};
      }
    }
    return best;
  }
  // All choices of one tensor's buffers and memories that are worth having.
  void parts(int tensor, const Buffers& own, std::vector<Part>& found) const {
    const Memories& memories = problem_.memories[tensor];
    // By the buffer that is outermost so far, and what leaves it.
    std::vector<std::pair<double, std::vector<Part>>> ends{{own.demand, {Part{}}}};
    const auto end_at = [&](const Buffer& buffer, bool last) {
      const double bytes = problem_.bytes(tensor, buffer.elements);
      std::vector<Part> here;
      offered(tensor, buffer, bytes, last, [&](double pj, int pool) {
        for (const auto& [outward, parts] : ends) {
          const double more = outward * pj + buffer.outward * problem_.filling(pj);
          for (Part part : parts) {
            part.pj += more;
            if (pool >= 0) part.taken[pool] += bytes;
            if (fits(part)) here.push_back(part);
          }
        }
      });
      unbeaten(here);
      return here;
    };
    found.clear();
    const auto finish = [&](double outward, const std::vector<Part>& parts) {
      for (Part part : parts) {
        part.pj += outward * memories.main_pj;
        found.push_back(part);
      }
    };
    finish(own.demand, ends.front().second);
    for (int i = 0; i < own.count; ++i) {
      const Buffer& buffer = own.rows[i];
      std::vector<Part> here = end_at(buffer, false);
      finish(buffer.outward, tells_last(tensor) ? end_at(buffer, true) : here);
      ends.emplace_back(buffer.outward, std::move(here));
    }
    unbeaten(found);
  }
  bool fits(const Part& part) const {
    for (std::size_t p = 0; p < problem_.pools.size(); ++p) {
      if (part.taken[p] > problem_.pools[p]) return false;
    }
    return true;
  }
  // Drops those that another beats in energy and bytes; by ascending energy.
  void unbeaten(std::vector<Part>& parts) const {
    std::ranges::sort(parts, {}, &Part::pj);
    std::size_t kept = 0;
    for (const Part& part : parts) {
      const bool beaten =
          std::any_of(parts.data(), parts.data() + kept, [&](auto& one) {
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
  // Least energy of all tensors where they share memories.
  double combined(const std::array<Buffers, kTensors>& buffers) const {
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

  Problem problem_;
  bool sliding_;
  std::vector<Curve> own_, last_;  // of each tensor
};

/// Energies of the nests of one problem, by the counts of memplan/blocking/nest, with
/// the memories that take the least.
class Cost {
 public:
  /// Keeps the problem, whose space does not matter.
  explicit Cost(const Problem& problem)
      : problem_(problem),
        pricing_(problem),
        size_(problem.layer.sizes()),
        base_(problem.layer.bases()) {}

  std::int64_t size(int dim) const { return size_[dim]; }
  std::int64_t base(int dim) const { return base_[dim]; }
  /// Whether a stripe of the input may lie between two loops along `dim`, so that they
  /// are not one.
  bool striped(int dim) const {
    return dim <= kY && size_[kFw + dim - kX] > problem_.layer.stride[dim - kX];
  }

  /// pJ of one group. loops: innermost first, of X Y C K B Fw Fh, at most kMostLoops;
  /// extents ascend within a dimension and end with its size, multiples of the
  /// datapath's but for that. Where it is more than `limit`, what comes back may be
  /// less than it is, but not less than `limit`.
  double operator()(std::span<const Loop> loops, double limit) const {
    // By axis, from the inside out: how far each loop covers it.
    std::array<std::array<Covered, kMostLoops + 1>, kAxes> levels;
    std::array<int, kAxes> depth{}, at{};
    std::array<double, kAxes> all;
    std::array<Covered, kAxes> now;
    for (int dim = 0; dim < kAxes; ++dim) all[dim] = static_cast<double>(size_[dim]);
    std::array<std::array<std::int64_t, kMostLoops + 1>, kAxes> extents;
    for (int dim = 0; dim < kAxes; ++dim) extents[dim][0] = base_[dim];
    for (const Loop& loop : loops) extents[loop.dim][++depth[loop.dim]] = loop.extent;
    for (int dim = 0; dim < kAxes; ++dim) {
      const std::int64_t stride = is_window(dim) ? problem_.layer.stride[dim - kFw] : 0;
      Tiles tiles;
      tiles.add(size_[dim], 1);
      for (int level = depth[dim]; level >= 0; --level) {
        tiles = tiles.split(extents[dim][level]);
        std::int64_t visits = 0, overlap = 0;
        for (int i = 0; i < tiles.count; ++i) {
          const auto [size, times] = tiles.rows[i];
          visits += times;
          overlap += std::min(size, stride) * times;
        }
        levels[dim][level] = {static_cast<double>(extents[dim][level]),
                              static_cast<double>(visits),
                              static_cast<double>(overlap)};
      }
      now[dim] = levels[dim][0];
    }
    const auto buffer = [&](int tensor) {
      const auto [elements, fill] = moved(problem_, tensor, all, now);
      return Buffer{elements, fill, false};
    };
    // Whether tiles that follow each other along a loop overlap in the input.
    const auto overlapping = [&](int dim) {
      return dim <= kY && now[kFw + dim - kX].extent >
                              static_cast<double>(problem_.layer.stride[dim - kX]);
    };
    std::array<Buffers, kTensors> buffers;
    for (int t = 0; t < kTensors; ++t) buffers[t].demand = buffer(t).outward;
    unsigned open = 0;
    bool by_kernels = false;  // whether a loop of K began the input's run
    const auto close = [&](unsigned tensors) {
      for (int t = 0; t < kTensors; ++t) {
        if (tensors >> t & 1) buffers[t].add(buffer(t));
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
      const bool slides = pricing_.sliding() && overlapping(dim);
      const double inside = slides ? buffer(kInput).elements : 0;
      now[dim] = levels[dim][++at[dim]];
      if (slides) buffers[kInput].add({inside, buffer(kInput).outward, true});
      // A stripe; where a loop of K comes next, its run has the same.
      const bool runs_on = i + 1 < loops.size() && loops[i + 1].dim == kK;
      if (overlapping(dim) && !runs_on) close(1u << kInput);
    }
    close(open);
    return pricing_(buffers, limit);
  }

 private:
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

  Problem problem_;
  Pricing pricing_;
  std::array<std::int64_t, kAxes> size_{}, base_{};
};

}  // namespace memplan::nest::whole
