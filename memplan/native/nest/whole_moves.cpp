#include "nest/whole_moves.h"

#include <algorithm>
#include <cstddef>
#include <utility>

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

}  // namespace

Moves::Moves(const Cost& cost) {
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

void Moves::tidy(Nest& nest) const {
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

bool Moves::outermost(const Nest& nest, std::size_t place) const {
  return nest[place].extent == size_[nest[place].dim];
}

// The extents around one: those worth trying, and one step of the datapath's.
std::vector<std::int64_t> Moves::near(int dim, std::int64_t extent) const {
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

void Moves::resize(Nest& nest, Draw& draw) const {
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

void Moves::insert(Nest& nest, Draw& draw) const {
  const int dim = dims_[drawn(dims_, draw)];
  if (nest.size() >= kLong || extents_[dim].empty()) return;
  const std::int64_t extent = extents_[dim][drawn(extents_[dim], draw)];
  const auto place = static_cast<std::ptrdiff_t>(draw() % (nest.size() + 1));
  nest.insert(nest.begin() + place, {dim, extent});
}

void Moves::random(Nest& nest, Draw& draw) const {
  if (nest.empty()) return;
  switch (draw() % 8) {
    case 0: case 1: case 2: resize(nest, draw); break;
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

bool Moves::elsewhere(const Nest& nest, const std::function<bool(Nest&)>& offer) const {
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

bool Moves::resized(const Nest& nest, const std::function<bool(Nest&)>& offer) const {
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

bool Moves::inserted(const Nest& nest, const std::function<bool(Nest&)>& offer) const {
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

bool Moves::both(const Nest& nest, const std::function<bool(Nest&)>& offer) const {
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

bool Moves::any(const Nest& nest, const std::function<bool(Nest&)>& offer) const {
  const auto tidied = [&](Nest& changed) {
    tidy(changed);
    return offer(changed);
  };
  return resized(nest, tidied) || elsewhere(nest, tidied) || inserted(nest, tidied) ||
         both(nest, tidied);
}

}  // namespace memplan::nest::whole
