#include "nest/whole_pricing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace memplan::nest::whole {
namespace {

using namespace optimum;

bool made(const Memories& memories, const Buffer& buffer, double bytes) {
  return !memories.knots.empty() && bytes <= memories.largest &&
         (memories.slides || !buffer.slides);
}

bool holds(const Level& level, const Buffer& buffer, double bytes) {
  return bytes <= level.bytes && (level.slides || !buffer.slides);
}

}  // namespace

Pricing::Pricing(const Problem& problem) : problem_(problem) {
  const Memories& inputs = problem_.memories[kInput];
  sliding_ = inputs.slides || std::ranges::any_of(inputs.levels, &Level::slides);
  for (const Memories& memories : problem_.memories) {
    own_.emplace_back(memories.knots);
    last_.emplace_back(memories.last);
  }
}

Pricing::Curve::Curve(const std::vector<Knot>& knots) {
  for (const Knot& knot : knots) {
    log_bytes.push_back(std::log(knot.bytes));
    log_pj.push_back(std::log(knot.pj));
  }
}

double Pricing::Curve::operator()(double bytes) const {
  const double where = std::log(bytes);
  if (where <= log_bytes.front()) return std::exp(log_pj.front());
  if (where >= log_bytes.back()) return std::exp(log_pj.back());
  const auto i = std::ranges::upper_bound(log_bytes, where) - log_bytes.begin();
  const double part = (where - log_bytes[i - 1]) / (log_bytes[i] - log_bytes[i - 1]);
  return std::exp(log_pj[i - 1] + part * (log_pj[i] - log_pj[i - 1]));
}

double Pricing::operator()(const std::array<Buffers, kTensors>& buffers,
                           double limit) const {
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

// Calls offer(pJ, pool) for every memory that holds a buffer of so many bytes. last: it
// lies outermost.
template <typename Offer>
void Pricing::offered(int tensor, const Buffer& buffer, double bytes, bool last,
                      const Offer& offer) const {
  const Memories& memories = problem_.memories[tensor];
  const auto fit = [&](double pj, int pool) {
    const bool fits = pool < 0 || bytes <= problem_.pools[pool];
    if (fits && pj < memories.main_pj) offer(pj, pool);
  };
  if (made(memories, buffer, bytes)) {
    const Curve& curve = last && tells_last(tensor) ? last_[tensor] : own_[tensor];
    fit(curve(bytes), memories.pool);
  }
  for (const auto& level : memories.levels) {
    if (holds(level, buffer, bytes)) fit(level.pj, level.pool);
  }
}

// Least energy of one tensor, as if no other competed for its memories.
Pricing::Part Pricing::least(int tensor, const Buffers& own) const {
  constexpr double never = std::numeric_limits<double>::infinity();
  const double main_pj = problem_.memories[tensor].main_pj;
  std::array<Part, Buffers::kMost> ends;  // where this buffer is the last, but for what
                                          // leaves it
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

bool Pricing::fits(const Part& part) const {
  for (std::size_t p = 0; p < problem_.pools.size(); ++p) {
    if (part.taken[p] > problem_.pools[p]) return false;
  }
  return true;
}

// Drops those that another beats in energy and bytes; by ascending energy.
void Pricing::unbeaten(std::vector<Part>& parts) const {
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
void Pricing::parts(int tensor, const Buffers& own, std::vector<Part>& found) const {
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

// Least energy of all tensors where they share memories.
double Pricing::combined(const std::array<Buffers, kTensors>& buffers) const {
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
