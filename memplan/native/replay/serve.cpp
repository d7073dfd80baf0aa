#include "replay/serve.h"

#include <utility>

namespace memplan {

Server::Server(Table table, std::uint64_t bytes, std::uint64_t granularity)
    : matcher_(std::move(table)), ranges_(bytes, granularity) {}

Place Server::serve(std::uint64_t bytes) {
  ++step_.requests;
  const std::size_t entry = matcher_.match(bytes);
  if (entry != Matcher::kNoMatch) {
    const std::int64_t offset = table().requests[entry].offset;
    if (offset < 0) {
      ++step_.unplanned;
      return {-1, Matcher::kNoMatch};
    }
    const std::int64_t place = take_planned(table().requests[entry], bytes);
    if (place >= 0) {
      ++step_.planned;
      return {place, entry};
    }
    ++step_.conflicts;
  }
  // In the warm-up a stranger may be there to stay, and would stand in the way of
  // every step to come; by lifespan, whatever stays was told by its size.
  const bool known = matcher_.looped() || table().by_lifespan;
  const bool placed = known && departures_placed_;
  const bool conflict = entry != Matcher::kNoMatch;
  return {depart(bytes, placed ? take_online(bytes, conflict) : -1), Matcher::kNoMatch};
}

std::int64_t Server::take_planned(const Request& request, std::uint64_t bytes) {
  if (table().by_lifespan) {
    return ranges_.take_anywhere(bytes, table().arena_bytes, request.brief);
  }
  const auto offset = static_cast<std::uint64_t>(request.offset);
  return ranges_.take(offset, bytes) ? request.offset : -1;
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
  const std::size_t next = matcher_.next();
  const std::size_t entry = matcher_.match(bytes);
  const std::vector<Request>& requests = table().requests;
  if (entry == Matcher::kNoMatch) {
    depart(bytes, -1);
    const bool waited = next >= requests.size() || requests[next].offset >= 0;
    // Of a weight's size by chance, it may be as planned but for its size.
    return {-1, 0, waited && !matcher_.keeps(bytes) ? bytes : 0};
  }
  const Request& request = requests[entry];
  std::uint64_t passed = 0;
  // By lifespan a step of the warm-up may be of other sizes, some of which come by later.
  const bool expected = entry - next < kNearby && !table().by_lifespan;
  for (std::size_t i = next; expected && i < entry; ++i) {
    if (requests[i].offset >= 0) passed += requests[i].size;
  }
  if (request.offset < 0) {
    ++step_.unplanned;
  } else {
    depart(bytes, -1);
    ++followed_;
  }
  return {request.offset, request.size, passed, request.brief};
}

std::int64_t Server::place_followed(std::int64_t offset, std::uint64_t bytes, bool brief) {
  const Request request = {.size = bytes, .offset = offset, .brief = brief};
  const std::int64_t place = take_planned(request, bytes);
  // Unless its step has ended meanwhile, it was counted as one that was only followed.
  if (place < 0 || followed_ == 0 || step_.fallback_bytes < bytes) return place;
  --followed_;
  --step_.fallback;
  step_.fallback_bytes -= bytes;
  ++step_.planned;
  return place;
}

bool Server::turns(std::uint64_t bytes) {
  const bool looped = matcher_.looped();
  const bool turned = matcher_.turns(bytes);
  // What was asked for in the loop is counted there, though the loop be over.
  if (looped && !matcher_.looped()) ended_.hot += std::exchange(step_, {});
  return turned;
}

StepEnd Server::next_step() {
  StepEnd end = {matcher_.step(), std::exchange(step_, {}), matcher_.looped(), false,
                 matcher_.outgrown(), std::exchange(followed_, 0)};
  ended_.of(end.hot) += end.counts;
  matcher_.next_step();
  // A warm-up is served to its end.
  if (next_table_ && matcher_.looped()) {
    matcher_.adopt(std::move(*next_table_));
    next_table_.reset();
    end.adopted = true;
  }
  return end;
}

PhaseCounts Server::counts() const {
  PhaseCounts sum = ended_;
  sum.of(matcher_.looped()) += step_;
  return sum;
}

}  // namespace memplan
