#include "dsa/exact_search.h"

#include <algorithm>
#include <stdexcept>

namespace memplan::dsa {
namespace {

constexpr std::int64_t kStopEvery = 64;  // nodes between two looks at the stop flag

bool restarting(const std::string& order) { return order.starts_with('R'); }

std::string letters_of(const std::string& order) {
  return restarting(order) ? "" : order.substr(order.starts_with('M') ? 1 : 0);
}

}  // namespace

template <class V>
Search<V>::Search(const Model<V>& model, const std::string& order, V capacity,
                  const Rules& rules, std::size_t memo_bytes)
    : model_(&model),
      capacity_(capacity),
      rules_(rules.grounded()),
      tightest_(rules_.tightest && order.starts_with('M')),
      state_(model),
      bounds_(model, rules_),
      ranking_(model, letters_of(order)),
      memo_(rules_.memo ? memo_bytes : 0),
      options_(model.sections) {
  if (!restarting(order)) return;
  if (order.size() < 2 || order.size() > 10 ||
      order.find_first_not_of("0123456789", 1) != order.npos) {
    throw std::invalid_argument("R needs a number of up to nine digits, a seed");
  }
  restarts_ = 0;
  seed_ = std::stoull(order.substr(1));
}

template <class V>
void Search<V>::begin() {
  begun_ = true;
  for (std::int32_t k = 0; k < model_->n; ++k) pool_.push_back(k);
  if (restarts_ >= 0) rank_anew();
  ranking_.sort(pool_, state_);
  bool fits = true;
  for (std::int32_t k = 0; k < model_->n; ++k) {
    fits &= state_.top(k) <= capacity_ + model_->beyond[k];
  }
  outcome_ = fits ? open(-1, 0, {0, model_->sections}, 0, true) : Outcome::kFailed;
  at_ = outcome_ == Outcome::kGo ? 0 : -1;
}

template <class V>
Verdict Search<V>::run(std::int64_t nodes, const StopSign& stop) {
  if (!begun_) begin();
  const std::int64_t until = nodes_ + nodes;
  std::int64_t look = nodes_ + kStopEvery;
  while (at_ >= 0 && (nodes_ < until || outcome_ == Outcome::kSolved)) {
    if (nodes_ >= look) {
      if (stop.up()) return Verdict::kOpen;
      look = nodes_ + kStopEvery;
    }
    if (restarts_ >= 0 && nodes_ >= restart_at_ && outcome_ != Outcome::kSolved) {
      state_.undo(0);
      frames_.clear();
      pool_.clear();
      begin();
      continue;
    }
    step();
  }
  if (at_ >= 0) return Verdict::kOpen;
  return outcome_ == Outcome::kSolved ? Verdict::kFits : Verdict::kNever;
}

template <class V>
void Search<V>::step() {
  const Frame& frame = frames_[at_];
  if (frame.kind == Kind::kParts) {
    outcome_ == Outcome::kFailed ? give_up(at_) : next_part(at_);
  } else if (outcome_ == Outcome::kSolved) {
    at_ = frame.parent;
  } else {
    advance(at_);
  }
}

// Takes back the placement of a choice, if there is one, and makes the next.
template <class V>
void Search<V>::advance(std::int32_t at) {
  truncate(at + 1);
  Frame& frame = frames_[at];
  if (frame.placed >= 0) {
    state_.undo(frame.mark_now);
    if (frame.hatless) frame.next = frame.stop;
    if (rules_.canonical) state_.bar(frame.placed);
    frame.mark_now = state_.mark();
  }
  if (frame.next == frame.stop) {
    state_.undo(frame.mark);
    if (rules_.memo) {
      memo_.add_failure(frame.hash, waiting(frame), state_, frame.last);
    }
    return give_up(at);
  }
  const std::int32_t k = pool_[frame.next++];
  frame.placed = k;
  ++nodes_;
  const V last = state_.least(k);
  if (!state_.place(k, capacity_)) {
    frame.hatless = false;
    outcome_ = Outcome::kFailed;
    return;
  }
  const auto items = static_cast<std::uint32_t>(pool_.size());
  pool_.resize(items + frame.lists - frame.items - 1);
  std::remove_copy(pool_.begin() + frame.items, pool_.begin() + frame.lists,
                   pool_.begin() + items, k);
  frame.hatless = rules_.hatless &&
                  std::none_of(model_->neighbours[k].begin(),
                               model_->neighbours[k].end(),
                               [&](auto i) { return state_.waits(i); });
  settle(at, open(at, items, {frame.first, frame.end}, last, true));
}

template <class V>
void Search<V>::next_part(std::int32_t at) {
  const Frame& frame = frames_[at];
  if (frame.next == frame.stop) {
    outcome_ = Outcome::kSolved;
    at_ = frame.parent;
    return;
  }
  const Range range{pool_[frame.next], pool_[frame.next + 1]};
  frames_[at].next += 2;
  const auto items = static_cast<std::uint32_t>(pool_.size());
  for (auto i = frame.items; i < frame.lists; ++i) {
    const std::int32_t k = pool_[i];
    if (range.first <= model_->start[k] && model_->start[k] < range.end) {
      pool_.push_back(k);
    }
  }
  const V last = frame.last;
  if (rules_.ranking) ranking_.sort({pool_.begin() + items, pool_.end()}, state_);
  settle(at, open(at, items, range, last, false));
}

template <class V>
void Search<V>::settle(std::int32_t parent, Outcome outcome) {
  outcome_ = outcome;
  const auto newest = static_cast<std::int32_t>(frames_.size()) - 1;
  at_ = outcome == Outcome::kGo ? newest : parent;
}

// A frame is done without success: its parent goes on.
template <class V>
void Search<V>::give_up(std::int32_t at) {
  const std::int32_t parent = frames_[at].parent;
  truncate(at);
  outcome_ = Outcome::kFailed;
  at_ = parent;
}

template <class V>
void Search<V>::truncate(std::int32_t frames) {
  if (static_cast<std::size_t>(frames) < frames_.size()) {
    pool_.resize(frames_[frames].items);
    frames_.resize(frames);
  } else if (!frames_.empty() && frames > 0) {
    pool_.resize(frames_.back().stop);
  }
}

// A new node: the buffers in pool_ from `items` on wait. `whole`: it is not yet known
// whether they fall apart.
template <class V>
typename Search<V>::Outcome Search<V>::open(std::int32_t parent, std::uint32_t items,
                                            Range range, V last, bool whole) {
  const std::span<const std::int32_t> waiting{pool_.begin() + items, pool_.end()};
  if (waiting.empty()) return Outcome::kSolved;
  if (!bounds_.may_fit(state_, waiting, range.first, range.end, last, capacity_)) {
    return Outcome::kFailed;
  }
  if (whole && rules_.decomposition && falls_apart(range)) {
    return open_parts(parent, items, range, last);
  }
  Frame frame{.kind = Kind::kChoice,
              .parent = parent,
              .first = range.first,
              .end = range.end,
              .items = items,
              .lists = static_cast<std::uint32_t>(pool_.size()),
              .next = static_cast<std::uint32_t>(pool_.size()),
              .stop = 0,
              .mark = state_.mark(),
              .mark_now = state_.mark(),
              .last = last};
  if (rules_.memo) {
    frame.hash = Memo<V>::hash(waiting, state_.least());
    if (memo_.fails(frame.hash, waiting, state_, last)) {
      return Outcome::kFailed;
    }
  }
  list_candidates(items, range, last);
  frame.stop = static_cast<std::uint32_t>(pool_.size());
  frames_.push_back(frame);
  return Outcome::kGo;
}

template <class V>
bool Search<V>::falls_apart(Range range) const {
  if (model_->periodic && state_.wrapping()) return false;
  for (std::int32_t s = range.first + 1; s < range.end; ++s) {
    if (state_.crossing(s) == 0) return true;
  }
  return false;
}

// The parts in ascending number of waiting buffers, as ranges of sections.
template <class V>
typename Search<V>::Outcome Search<V>::open_parts(std::int32_t parent,
                                                  std::uint32_t items, Range range,
                                                  V last) {
  const auto end = static_cast<std::uint32_t>(pool_.size());
  struct Part {
    Range range;
    std::int32_t count = 0;
  };
  std::vector<Part> parts;
  std::vector<std::int32_t> part_of(range.end - range.first);
  for (std::int32_t s = range.first; s < range.end; ++s) {
    if (s == range.first || state_.crossing(s) == 0) parts.push_back({{s, s}});
    parts.back().range.end = s + 1;
    part_of[s - range.first] = static_cast<std::int32_t>(parts.size()) - 1;
  }
  for (auto i = items; i < end; ++i) {
    ++parts[part_of[model_->start[pool_[i]] - range.first]].count;
  }
  std::erase_if(parts, [](const Part& part) { return part.count == 0; });
  if (parts.size() == 1) return open(parent, items, parts[0].range, last, false);
  std::stable_sort(parts.begin(), parts.end(),
                   [](auto& a, auto& b) { return a.count < b.count; });
  for (const Part& part : parts) {
    pool_.push_back(part.range.first);
    pool_.push_back(part.range.end);
  }
  frames_.push_back({.kind = Kind::kParts,
                     .parent = parent,
                     .first = range.first,
                     .end = range.end,
                     .items = items,
                     .lists = end,
                     .next = end,
                     .stop = static_cast<std::uint32_t>(pool_.size()),
                     .mark = state_.mark(),
                     .mark_now = state_.mark(),
                     .last = last});
  return Outcome::kGo;
}

template <class V>
void Search<V>::tighten(V capacity) {
  capacity_ = capacity;
  const auto count = static_cast<std::int32_t>(frames_.size());
  for (std::int32_t at = 0; at < count; ++at) {
    const Frame& frame = frames_[at];
    if (frame.kind != Kind::kChoice || frame.placed < 0) continue;
    if (state_.waits(frame.placed) || 
        state_.top(frame.placed) <= capacity + model_->beyond[frame.placed]) {
      continue;
    }
    reopen_parts(at);
    truncate(at + 1);
    at_ = at;
    outcome_ = Outcome::kFailed;
    return;
  }
}

// Parts that were solved after the one with this frame will have to be solved again.
template <class V>
void Search<V>::reopen_parts(std::int32_t at) {
  for (std::int32_t parent; (parent = frames_[at].parent) >= 0; at = parent) {
    Frame& frame = frames_[parent];
    if (frame.kind != Kind::kParts) continue;
    frame.next = frame.lists;
    while (pool_[frame.next] != frames_[at].first) frame.next += 2;
    frame.next += 2;
  }
}

template class Search<std::int32_t>;
template class Search<std::int64_t>;

}  // namespace memplan::dsa
