#include "replay/steps.h"

#include <utility>

namespace memplan {

Steps::Steps(Table table) : table_(std::move(table)) { load(0); }

void Steps::adopt(Table table) {
  table_ = std::move(table);
  load(table_.loop_begin);
}

void Steps::load(std::size_t step) {
  progress_ = std::make_unique<Progress>(table_.requests.size());
  policies_ = policies_of(table_, *progress_);
  search_.reset();
  loop_next_ = table_.loop_begin;
  enter(step);
  if (!table_.unmarked) return;
  search_ =
      std::make_unique<Search>(table_, table_.steps[table_.loop_begin], *progress_);
  search_->begin_at(policy_->next());
  policy_ = search_.get();
}

void Steps::enter(std::size_t step, std::size_t skipped) {
  step_ = step;
  policy_ = policies_[step].get();
  progress_->history.resize(skipped);
  policy_->begin(skipped);
  if (step >= table_.loop_begin && step < table_.loop_end) {
    loop_next_ = step + 1 < table_.loop_end ? step + 1 : table_.loop_begin;
  }
}

void Steps::next_step() {
  if (policy_ == search_.get()) {
    progress_->history = search_->before();
    enter(table_.loop_begin, progress_->history.size());
    return;
  }
  const bool planned = policy_->end();
  if (warming_up()) {
    enter(step_ + 1);
  } else {
    enter(planned ? loop_next_ : step_);
  }
}

bool Steps::finds_turn(std::uint64_t bytes) {
  if (policy_ != search_.get()) {
    const bool lost = policy_->lost();
    if (!lost && !policy_->complete()) return false;
    const Step& next = table_.steps[loop_next_];
    const bool empty = next.first == next.last;
    if (!lost && !empty && table_.requests[next.first].size == bytes) return true;
    search_->begin_at(policy_->next());
    policy_ = search_.get();
  }
  return search_->finds(bytes);
}

std::size_t Steps::match_another(std::uint64_t bytes) {
  const std::size_t chosen = another_like_this();
  if (chosen == kNoMatch) return policy_->search(bytes);
  const bool was_in_loop = step_ < table_.loop_end;
  const std::size_t due = was_in_loop ? step_ : loop_next_;
  enter(chosen, progress_->history.size() - 1);
  // The step that it seemed to be is still due.
  if (chosen >= table_.loop_end) loop_next_ = due;
  return policy_->match(bytes);
}

std::size_t Steps::another_like_this() const {
  const std::size_t begin = table_.loop_begin, loop = table_.loop_end - begin;
  for (std::size_t i = 0; begin + i < table_.steps.size(); ++i) {
    // The loop's steps from the one that is due next, then the other kinds.
    const std::size_t turn = i < loop ? (loop_next_ - begin + i) % loop : i;
    const std::size_t step = begin + turn;
    if (step != step_ && policies_[step]->begins_like(progress_->history)) return step;
  }
  return kNoMatch;
}

std::vector<std::uint64_t> Steps::largest() const {
  std::vector<std::uint64_t> result = progress_->largest;
  policy_->raise(result);
  return result;
}

}  // namespace memplan
