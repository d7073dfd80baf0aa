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
  for (int t = 0; t < kTensors; ++t) {
    for (const Knot& knot : problem_.memories[t].knots) {
      log_bytes_[t].push_back(std::log(knot.bytes));
      log_pj_[t].push_back(std::log(knot.pj));
    }
  }
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

double Pricing::price(int tensor, double bytes) const {
  const auto& at = log_bytes_[tensor];
  const auto& pj = log_pj_[tensor];
  const double where = std::log(bytes);
  if (where <= at.front()) return std::exp(pj.front());
  if (where >= at.back()) return std::exp(pj.back());
  const auto i = std::upper_bound(at.begin(), at.end(), where) - at.begin();
  const double part = (where - at[i - 1]) / (at[i] - at[i - 1]);
  return std::exp(pj[i - 1] + part * (pj[i] - pj[i - 1]));
}

// The memory of least energy that holds a buffer, of so many bytes, and its pool.
std::pair<double, int> Pricing::cheapest(int tensor, const Buffer& buffer,
                                         double bytes) const {
  const Memories& memories = problem_.memories[tensor];
  std::pair<double, int> least{std::numeric_limits<double>::infinity(), -1};
  const auto offer = [&](double pj, int pool) {
    if (pool >= 0 && bytes > problem_.pools[pool]) return;
    if (pj < least.first) least = {pj, pool};
  };
  if (made(memories, buffer, bytes)) offer(price(tensor, bytes), memories.pool);
  for (const auto& level : memories.levels) {
    if (holds(level, buffer, bytes)) offer(level.pj, level.pool);
  }
  return least;
}

// Least energy of one tensor, as if no other competed for its memories.
Pricing::Part Pricing::least(int tensor, const Buffers& own) const {
  const double main_pj = problem_.memories[tensor].main_pj;
  std::array<Part, Buffers::kMost> ends;  // where this buffer is the last, but for what
                                      // leaves it
  Part best{own.demand * main_pj, {}};
  for (int i = 0; i < own.count; ++i) {
    const Buffer& buffer = own.rows[i];
    const double bytes = problem_.bytes(tensor, buffer.elements);
    const auto [pj, pool] = cheapest(tensor, buffer, bytes);
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
  std::vector<std::pair<double, std::vector<Part>>> ends{{own.demand, {Part{}}}};
  std::vector<std::pair<double, int>> options;
  for (int i = 0; i < own.count; ++i) {
    const Buffer& buffer = own.rows[i];
    const double bytes = problem_.bytes(tensor, buffer.elements);
    options.clear();
    if (made(memories, buffer, bytes)) {
      options.emplace_back(price(tensor, bytes), memories.pool);
    }
    for (const auto& level : memories.levels) {
      if (holds(level, buffer, bytes)) options.emplace_back(level.pj, level.pool);
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
