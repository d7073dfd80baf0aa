#include "nest/cache_sim.h"

#include <bit>
#include <stdexcept>

namespace memplan::nest {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace

CacheLevel::CacheLevel(const CacheGeometry& geometry) {
  require(geometry.bytes > 0 && geometry.ways > 0, "need bytes > 0 and ways > 0");
  require(geometry.line >= 4 && std::has_single_bit(
                                    static_cast<std::uint64_t>(geometry.line)),
          "a line must be a power of two, of 4 bytes or more");
  require(geometry.ways <= geometry.bytes / geometry.line &&
              geometry.bytes % (geometry.ways * geometry.line) == 0,
          "a cache must be a whole number of sets of ways of lines");
  ways_ = static_cast<std::uint64_t>(geometry.ways);
  sets_ = static_cast<std::uint64_t>(geometry.bytes / geometry.line / geometry.ways);
  mask_ = std::has_single_bit(sets_) ? sets_ - 1 : 0;
  shift_ = std::countr_zero(static_cast<std::uint64_t>(geometry.line));
  slots_.assign(sets_ * ways_, kEmpty);
}

CacheSim::CacheSim(std::span<const CacheGeometry> levels) {
  require(!levels.empty(), "need a level");
  for (std::size_t i = 0; i < levels.size(); ++i) {
    require(i == 0 || levels[i - 1].line <= levels[i].line,
            "lines must not become smaller from level to level");
    levels_.emplace_back(levels[i]);
  }
}

void CacheSim::missed(std::size_t level, std::uint64_t line, std::uint64_t victim) {
  CacheLevel& here = levels_[level];
  ++here.counts.misses;
  if (level + 1 < levels_.size()) {
    CacheLevel& next = levels_[level + 1];
    ++next.counts.accesses;
    const std::uint64_t outer = next.line_of(here.address_of(line));
    std::uint64_t pushed;
    if (!next.take(outer, false, pushed)) missed(level + 1, outer, pushed);
  }
  write_back(level, victim);
}

void CacheSim::write_back(std::size_t level, std::uint64_t victim) {
  if (!CacheLevel::dirty(victim)) return;
  CacheLevel& here = levels_[level];
  ++here.counts.writebacks;
  if (level + 1 == levels_.size()) return;
  CacheLevel& next = levels_[level + 1];
  const std::uint64_t outer = next.line_of(here.address_of(victim >> 1));
  std::uint64_t pushed;
  if (!next.take(outer, true, pushed)) write_back(level + 1, pushed);
}

}  // namespace memplan::nest
