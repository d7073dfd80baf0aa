#include "replay/expandable.h"

#include <algorithm>
#include <iterator>

#include "replay/ranges.h"

namespace memplan {
namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kSmallRequest = 1 << 20;
constexpr std::uint64_t kRange = std::uint64_t{1} << 50;  // bytes of addresses

// The next multiple of a unit that need not be a power of two.
std::uint64_t up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

std::uint64_t ExpandableModel::allocate(std::uint64_t bytes) {
  const std::uint64_t wanted = round_up(bytes, kBlock);
  const bool large = wanted > kSmallRequest;
  return pools_[large].allocate(wanted) + (large ? kApart : 0);
}

void ExpandableModel::free(std::uint64_t address) {
  const bool large = address >= kApart;
  Pool& pool = pools_[large];
  pool.free(pool.parts.find(address - (large ? kApart : 0)));
}

void ExpandableModel::empty_cache() {
  for (Pool& pool : pools_) pool.empty_cache();
}

ExpandableModel::Pool::Pool(std::uint64_t bytes) : unit(bytes) {
  parts.emplace(0, Part{kRange, State::kUnmapped});
  unmapped.insert(0);
}

std::uint64_t ExpandableModel::Pool::allocate(std::uint64_t bytes) {
  Parts::iterator part = best(bytes);
  if (part == parts.end()) part = map(bytes);
  split(part, bytes);
  become(part, State::kUsed);
  return part->first;
}

void ExpandableModel::Pool::free(Parts::iterator part) { become(part, State::kFree); }

// Bytes that the free block at `address` can grow to.
std::uint64_t ExpandableModel::Pool::room(std::uint64_t address) const {
  const auto part = parts.find(address), next = std::next(part);
  const bool grows = next != parts.end() && next->second.state == State::kUnmapped;
  return part->second.size + (grows ? next->second.size : 0);
}

ExpandableModel::Parts::iterator ExpandableModel::Pool::best(std::uint64_t bytes) {
  auto hole = holes.lower_bound({bytes, 0});
  if (hole == holes.end()) return parts.end();
  for (auto next = std::next(hole); next != holes.end() && room(next->second) < room(hole->second);
       ++next) {
    hole = next;
  }
  return parts.find(hole->second);
}

// A free block of at least `bytes`, at the lowest address where that takes mapping.
ExpandableModel::Parts::iterator ExpandableModel::Pool::map(std::uint64_t bytes) {
  for (const std::uint64_t address : unmapped) {
    Parts::iterator first = parts.find(address);
    if (first != parts.begin() && std::prev(first)->second.state == State::kFree) --first;
    std::uint64_t found = 0;
    for (auto at = first; at != parts.end() && at->second.state != State::kUsed && found < bytes;
         ++at) {
      found += at->second.size;
    }
    if (found < bytes) continue;
    while (first->second.state == State::kUnmapped || first->second.size < bytes) {
      const bool begins = first->second.state == State::kUnmapped;
      const auto at = begins ? first : std::next(first);
      const std::uint64_t left = bytes - (begins ? 0 : first->second.size);
      split(at, std::min(at->second.size, up(left, unit)));
      mapped += at->second.size;
      first = become(at, State::kFree);
    }
    return first;
  }
  return parts.end();  // not for what a device holds: the last part is larger
}

void ExpandableModel::Pool::empty_cache() {
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    if (part->second.state != State::kFree) continue;
    const std::uint64_t end = part->first + part->second.size;
    const std::uint64_t from = up(part->first, unit), to = end / unit * unit;
    if (from >= to) continue;
    if (from > part->first) part = split(part, from - part->first);
    split(part, to - from);
    mapped -= to - from;
    part = become(part, State::kUnmapped);
  }
}

// Joins it with neighbours of the same state, unless it is used; returns the part.
ExpandableModel::Parts::iterator ExpandableModel::Pool::become(Parts::iterator part,
                                                              State state) {
  list(part, false);
  part->second.state = state;
  if (state != State::kUsed) {
    const auto next = std::next(part);
    if (next != parts.end() && next->second.state == state) {
      list(next, false);
      part->second.size += next->second.size;
      parts.erase(next);
    }
    if (part != parts.begin() && std::prev(part)->second.state == state) {
      const auto before = std::prev(part);
      list(before, false);
      before->second.size += part->second.size;
      parts.erase(part);
      part = before;
    }
  }
  list(part, true);
  return part;
}

void ExpandableModel::Pool::list(Parts::iterator part, bool there) {
  const auto& [address, what] = *part;
  if (what.state == State::kFree) {
    there ? void(holes.emplace(what.size, address)) : void(holes.erase({what.size, address}));
  } else if (what.state == State::kUnmapped) {
    there ? void(unmapped.insert(address)) : void(unmapped.erase(address));
  }
}

// Has the part end after `bytes`; returns what comes behind, or the part if nothing does.
ExpandableModel::Parts::iterator ExpandableModel::Pool::split(Parts::iterator part,
                                                             std::uint64_t bytes) {
  if (part->second.size == bytes) return part;
  const Part rest = {part->second.size - bytes, part->second.state};
  list(part, false);
  part->second.size = bytes;
  list(part, true);
  const auto behind = parts.emplace_hint(std::next(part), part->first + bytes, rest);
  list(behind, true);
  return behind;
}

}  // namespace memplan
