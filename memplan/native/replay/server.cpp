#include "replay/server.h"

#include <utility>

namespace memplan {
namespace {

class AtOffsets final : public Placement {
 public:
  std::int64_t take(Ranges& ranges, const Table&, const Request& request,
                    std::uint64_t bytes) const override {
    const auto offset = static_cast<std::uint64_t>(request.offset);
    return ranges.take(offset, bytes) ? request.offset : -1;
  }
  // In the warm-up a departure may be there to stay, and would be in the way of every
  // step to come.
  bool admits_departures(bool looped) const override { return looped; }
  std::uint64_t departed_bytes(const Counts& counts) const override {
    return counts.online_bytes + counts.fallback_bytes;
  }
  std::uint64_t skipped_bytes(const Table& table, std::size_t next,
                              std::size_t entry) const override {
    if (entry - next >= kNearby) return 0;
    std::uint64_t skipped = 0;
    for (std::size_t i = next; i < entry; ++i) {
      if (table.requests[i].offset >= 0) skipped += table.requests[i].size;
    }
    return skipped;
  }

 private:
  static constexpr std::size_t kNearby = 64;  // entries; beyond, it is another step's
};

class ByLifespan final : public Placement {
 public:
  std::int64_t take(Ranges& ranges, const Table& table, const Request& request,
                    std::uint64_t bytes) const override {
    return ranges.take_anywhere(bytes, table.arena_bytes, request.brief);
  }
  // What stays was recognised by its size.
  bool admits_departures(bool) const override { return true; }
  std::uint64_t departed_bytes(const Counts& counts) const override {
    return counts.fallback_bytes;
  }
  // A step of the warm-up may be of other sizes, some of which come later.
  std::uint64_t skipped_bytes(const Table&, std::size_t, std::size_t) const override {
    return 0;
  }
};

}  // namespace

const Placement& Placement::of(const Table& table) {
  static const AtOffsets* const at_offsets = new AtOffsets;
  static const ByLifespan* const by_lifespan = new ByLifespan;
  if (table.by_lifespan) return *by_lifespan;
  return *at_offsets;
}

Server::Server(Table table, std::uint64_t bytes, std::uint64_t granularity)
    : steps_(std::move(table)),
      placement_(&Placement::of(steps_.table())),
      ranges_(bytes, granularity) {}

Place Server::serve(std::uint64_t bytes) {
  ++step_.requests;
  const std::size_t entry = steps_.match(bytes);
  if (entry != kNoMatch) {
    const Request& request = table().requests[entry];
    if (request.offset < 0) {
      ++step_.unplanned;
      return {-1, kNoMatch};
    }
    const std::int64_t place = placement_->take(ranges_, table(), request, bytes);
    if (place >= 0) {
      ++step_.planned;
      return {place, entry};
    }
    ++step_.conflicts;
  }
  const bool placed = departures_placed_ && placement_->admits_departures(looped());
  const bool conflict = entry != kNoMatch;
  return {depart(bytes, placed ? take_online(bytes, conflict) : -1), kNoMatch};
}

std::int64_t Server::take_online(std::uint64_t bytes, bool conflict) {
  const std::uint64_t planned = table().arena_bytes, all = table().online_bytes;
  std::int64_t offset = -1;
  if (all > planned) {
    offset = conflict ? ranges_.take_above(bytes, planned)
                      : ranges_.take_anywhere(bytes, planned);
  }
  return offset >= 0 ? offset : ranges_.take_anywhere(bytes, all);
}

Followed Server::follow(std::uint64_t bytes) {
  ++step_.requests;
  const std::size_t next = steps_.policy().next();
  const std::size_t entry = steps_.match(bytes);
  const std::vector<Request>& requests = table().requests;
  if (entry == kNoMatch) {
    depart(bytes, -1);
    const bool expected = next >= requests.size() || requests[next].offset >= 0;
    // It may have a weight's size by chance, and be as planned but for that.
    return {-1, 0, expected && !steps_.policy().keeps(bytes) ? bytes : 0};
  }
  const Request& request = requests[entry];
  if (request.offset < 0) {
    ++step_.unplanned;
  } else {
    depart(bytes, -1);
    ++followed_;
  }
  return {request.offset, request.size,
          placement_->skipped_bytes(table(), next, entry), request.brief};
}

std::int64_t Server::place_followed(std::int64_t offset, std::uint64_t bytes, bool brief) {
  const Request request = {.size = bytes, .offset = offset, .brief = brief};
  const std::int64_t place = placement_->take(ranges_, table(), request, bytes);
  // Unless its step has ended meanwhile, it was counted as one that was only followed.
  if (place < 0 || followed_ == 0 || step_.fallback_bytes < bytes) return place;
  --followed_;
  --step_.fallback;
  step_.fallback_bytes -= bytes;
  ++step_.planned;
  return place;
}

bool Server::turns(std::uint64_t bytes) {
  const bool before = looped();
  const bool turned = steps_.turns(bytes);
  // The requests made in the loop count there, though the loop is over.
  if (before && !looped()) ended_.hot += std::exchange(step_, {});
  return turned;
}

StepEnd Server::next_step() {
  StepEnd end = {steps_.step(), std::exchange(step_, {}), looped(), false,
                 steps_.policy().outgrown(), std::exchange(followed_, 0)};
  ended_.of(end.hot) += end.counts;
  steps_.next_step();
  // The warm-up goes by its own table to the end.
  if (next_table_ && looped()) {
    steps_.adopt(std::move(*next_table_));
    placement_ = &Placement::of(table());
    next_table_.reset();
    end.adopted = true;
  }
  return end;
}

PhaseCounts Server::counts() const {
  PhaseCounts sum = ended_;
  sum.of(looped()) += step_;
  return sum;
}

}  // namespace memplan
