#include "replay/matcher.h"

#include <algorithm>
#include <utility>

namespace memplan {
namespace {

// How many entries ahead of the last match, and behind it, a request may be matched:
// threads that allocate side by side change places by a few.
constexpr std::size_t kWindow = 64;
// By how many requests less than this a step of the warm-up that is of other sizes is held
// to do more, or fewer.
constexpr std::size_t kNearly = 16;
// How far into a step another kind may still be recognised.
constexpr std::size_t kHistory = 512;
// Without marks: by how many requests a step is told, and how many of a step may miss
// before it is taken for none.
constexpr std::size_t kPrefix = 8;
constexpr std::size_t kMissed = 16;

}  // namespace

Matcher::Matcher(Table table) : table_(std::move(table)) {
  used_.resize(table_.requests.size());
  elastic_.reset(table_.requests.size());
  history_.reserve(kHistory);
  loop_next_ = table_.loop_begin;
  enter(0);
  lost_ = table_.unmarked;
}

void Matcher::adopt(Table table) {
  table_ = std::move(table);
  used_.assign(table_.requests.size(), false);
  elastic_.reset(table_.requests.size());
  loop_next_ = table_.loop_begin;
  enter(table_.loop_begin);
  lost_ = table_.unmarked;
}

void Matcher::enter(std::size_t step) {
  step_ = step;
  seen_ = 0;
  in_order_ = true;
  outgrown_ = false;
  missed_ = 0;
  history_.clear();
  if (step >= table_.steps.size()) return;
  const auto [first, last, elastic] = table_.steps[step];
  cursor_ = reach_ = first;
  if (elastic && !table_.by_lifespan) elastic_.begin(first, last);
  of_kept_.clear();
  if (table_.by_lifespan && step < table_.loop_begin) index_kept(table_.steps[step]);
  std::fill(used_.begin() + static_cast<std::ptrdiff_t>(first),
            used_.begin() + static_cast<std::ptrdiff_t>(last), false);
  if (step >= table_.loop_begin && step < table_.loop_end) {
    loop_next_ = step + 1 < table_.loop_end ? step + 1 : table_.loop_begin;
  }
}

bool Matcher::turns(std::uint64_t bytes) {
  if (!table_.unmarked) return false;
  const auto [first, last, elastic] = table_.steps[lost_ ? table_.loop_begin : step_];
  const auto request = table_.requests.begin() + static_cast<std::ptrdiff_t>(first);
  if (!lost_) {
    if (missed_ < kMissed && first + seen_ < last) return false;
    const Step& next = table_.steps[loop_next_];
    if (missed_ < kMissed && table_.requests[next.first].size == bytes) return true;
    lose();
  }
  const std::size_t prefix = std::min(kPrefix, last - first);
  recent_.push_back(bytes);
  if (recent_.size() > prefix) recent_.erase(recent_.begin());
  return recent_.size() == prefix &&
         std::equal(recent_.begin(), recent_.end(), request,
                    [](std::uint64_t asked, const Request& planned) {
                      return asked == planned.size;
                    });
}

void Matcher::lose() {
  lost_ = true;
  recent_.clear();
}

void Matcher::next_step() {
  if (lost_) {
    lost_ = false;
    enter(table_.loop_begin);
    // The requests before this one were served elsewhere.
    seen_ = recent_.empty() ? 0 : recent_.size() - 1;
    cursor_ = reach_ = cursor_ + seen_;
    history_.assign(recent_.begin(), recent_.begin() + static_cast<std::ptrdiff_t>(seen_));
    return;
  }
  const bool idle = seen_ == 0 && step_ < table_.steps.size() &&
                    table_.steps[step_].first < table_.steps[step_].last;
  const bool elastic =
      step_ < table_.steps.size() && table_.steps[step_].elastic && !table_.by_lifespan;
  if (elastic) elastic_.end();
  if (!looped()) {
    enter(step_ + 1);
  } else if (idle || (elastic && elastic_.stray())) {
    enter(step_);  // a step without requests, or of others, is none of the plan's
  } else {
    enter(loop_next_);
  }
}

std::size_t Matcher::match(std::uint64_t bytes) {
  if (lost_ || step_ >= table_.steps.size()) return kNoMatch;
  const std::size_t position = seen_++;
  if (table_.steps[step_].elastic) return match_by_position(bytes);
  const std::size_t expected = table_.steps[step_].first + position;
  std::size_t found = kNoMatch;
  if (in_order_ && expected < table_.steps[step_].last &&
      table_.requests[expected].size == bytes) {
    found = take(expected);
  } else if (looped() && position < kHistory && history_.size() == position &&
             follow_another(bytes)) {
    found = take(table_.steps[step_].first + position);
  } else {
    in_order_ = false;
    const bool apart = table_.by_lifespan && !looped();
    found = apart && keeps(bytes) ? match_kept(expected, bytes) : match_nearby(bytes);
    if (found == kNoMatch && apart && !keeps(bytes)) found = match_size_apart(expected);
    if (found == kNoMatch) ++missed_;
  }
  if (history_.size() == position && position < kHistory) history_.push_back(bytes);
  previous_ = bytes;
  return found;
}

std::size_t Matcher::match_by_position(std::uint64_t bytes) {
  const std::size_t entry = table_.steps[step_].first + seen_ - 1;
  if (table_.by_lifespan) return entry < table_.steps[step_].last ? entry : kNoMatch;
  if (!elastic_.take(bytes)) return kNoMatch;
  // One that is too large would lie in the way of those planned after it: from then
  // on, the step goes without the plan.
  if (bytes > table_.requests[entry].size) outgrown_ = true;
  return outgrown_ ? kNoMatch : entry;
}

// Of a warm-up whose sizes differ from run to run, or which does more or less: what keeps
// its size is told by it, see `match_kept`, and the others by position.
std::size_t Matcher::match_size_apart(std::size_t expected) {
  const std::size_t end = std::min(table_.steps[step_].last, expected + kWindow);
  for (std::size_t i = expected; i < end; ++i) {
    if (!used_[i] && table_.requests[i].offset >= 0) return take(i);
  }
  return kNoMatch;
}

void Matcher::index_kept(const Step& step) {
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = step.first; i < step.last; ++i) {
    if (table_.requests[i].offset < 0) sizes.push_back(table_.requests[i].size);
  }
  std::sort(sizes.begin(), sizes.end());
  for (std::size_t i = step.first; i < step.last; ++i) {
    const std::uint64_t size = table_.requests[i].size;
    if (std::binary_search(sizes.begin(), sizes.end(), size)) of_kept_.emplace_back(size, i);
  }
  std::sort(of_kept_.begin(), of_kept_.end());
}

// A weight, its gradient, and the optimizer's state of it are of one size. In a step that
// does more or less than planned, one is told from the other by the request before it, or
// by its place if that is nearly the one planned.
std::size_t Matcher::match_kept(std::size_t expected, std::uint64_t bytes) {
  const std::size_t first = table_.steps[step_].first;
  std::size_t found = kNoMatch, near = kNoMatch, apart = kNearly;
  for (auto at = of_kept_size(bytes); at != of_kept_.end() && at->first == bytes; ++at) {
    const std::size_t entry = at->second;
    if (used_[entry]) continue;
    const std::size_t by = entry < expected ? expected - entry : entry - expected;
    if (by < apart) {
      near = entry;
      apart = by;
    }
    const bool after = entry > first && table_.requests[entry - 1].size == previous_;
    if (after && found == kNoMatch) found = entry;
  }
  if (found == kNoMatch) found = near;
  if (found != kNoMatch) used_[found] = true;
  return found;
}

std::size_t Matcher::match_nearby(std::uint64_t bytes) {
  const std::size_t end = std::min(table_.steps[step_].last, reach_ + kWindow);
  for (std::size_t i = cursor_; i < end; ++i) {
    if (!used_[i] && table_.requests[i].size == bytes) return take(i);
  }
  return kNoMatch;
}

std::size_t Matcher::take(std::size_t entry) {
  used_[entry] = true;
  reach_ = std::max(reach_, entry + 1);
  // Entries the program has passed by without asking are given up.
  if (reach_ > kWindow) cursor_ = std::max(cursor_, reach_ - kWindow);
  while (cursor_ < reach_ && used_[cursor_]) ++cursor_;
  return entry;
}

bool Matcher::follow_another(std::uint64_t bytes) {
  const std::size_t chosen = another_like(bytes);
  if (chosen == kNoMatch) return false;
  const std::size_t position = seen_ - 1, expected = loop_next_;
  std::vector<std::uint64_t> before = std::move(history_);
  history_ = {};
  // The step it was taken for is still to come.
  const bool was_in_loop = step_ < table_.loop_end;
  const std::size_t mistaken = step_;
  enter(chosen);
  if (chosen >= table_.loop_end) loop_next_ = was_in_loop ? mistaken : expected;
  history_ = std::move(before);
  seen_ = position + 1;
  cursor_ = reach_ = table_.steps[chosen].first + position;
  in_order_ = true;
  return true;
}

std::size_t Matcher::another_like(std::uint64_t bytes) const {
  const std::size_t begin = table_.loop_begin, loop = table_.loop_end - begin;
  for (std::size_t i = 0; begin + i < table_.steps.size(); ++i) {
    // The loop's steps from the one that is to come next, then the other kinds.
    const std::size_t turn = i < loop ? (loop_next_ - begin + i) % loop : i;
    const std::size_t step = begin + turn;
    if (step != step_ && begins_like_this(step, bytes)) return step;
  }
  return kNoMatch;
}

bool Matcher::begins_like_this(std::size_t step, std::uint64_t bytes) const {
  const auto [first, last, elastic] = table_.steps[step];
  const std::size_t count = history_.size();
  if (elastic || last - first <= count) return false;
  const auto request = table_.requests.begin() + static_cast<std::ptrdiff_t>(first);
  const auto same = [](const Request& planned, std::uint64_t asked) {
    return planned.size == asked;
  };
  return request[static_cast<std::ptrdiff_t>(count)].size == bytes &&
         std::equal(request, request + static_cast<std::ptrdiff_t>(count), history_.begin(),
                    same);
}

}  // namespace memplan
