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
    if (ranges_.take(static_cast<std::uint64_t>(offset), bytes)) {
      ++step_.planned;
      return {offset, entry};
    }
    ++step_.conflicts;
  }
  // In the warm-up a stranger may be there to stay, and would stand in the way of
  // every step to come.
  const bool placed = matcher_.looped() && departures_placed_;
  const std::int64_t offset =
      placed ? ranges_.take_anywhere(bytes, table().online_bytes) : -1;
  return {depart(bytes, offset), Matcher::kNoMatch};
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
                 matcher_.outgrown()};
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
