// Which step of a plan the program is in, and which policy matches its requests.
//
// A plan is a list of steps. The first ones are the program's warm-up; the next ones
// repeat for ever; then come steps of other kinds (a short last batch, an evaluation),
// any of which may replace one of the loop. A step's first requests tell its kind: once
// they differ from the step expected and agree with another, that one is followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "replay/policy.h"
#include "replay/table.h"

namespace memplan {

class Steps {
 public:
  explicit Steps(Table table) : table_(std::move(table)) { load(0); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // The table's request that is one of `bytes`, or kNoMatch.
  std::size_t match(std::uint64_t bytes) {
    const std::size_t found = policy_->match(bytes);
    return found == Policy::kMaybeAnother ? match_another(bytes) : found;
  }
  // Without marks: whether a request of `bytes` is the first of a step, or shows that one
  // has begun. Then `next_step` comes before `match`.
  bool turns(std::uint64_t bytes) { return search_ != nullptr && finds_turn(bytes); }
  // The program begins its next step. A step without requests replaced none of the loop's.
  void next_step() {
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
  // From the next request on, follow another table, from its first repeated step.
  void adopt(Table table) {
    table_ = std::move(table);
    load(table_.loop_begin);
  }

  const Table& table() const { return table_; }
  const Policy& policy() const { return *policy_; }
  // The step being followed, or the last one that was.
  std::size_t step() const { return step_; }
  bool warming_up() const { return step_ < table_.loop_begin; }
  // Whether the warm-up is over; without marks, whether the loop is being followed.
  bool looped() const { return !warming_up() && policy_ != search_.get(); }
  // Whether none of the step's requests came yet.
  bool at_start() const {
    return step_ < table_.steps.size() && policy_->next() == table_.steps[step_].first;
  }
  // Per request of the table, the most bytes asked for in its place; of elastic steps
  // that came in full.
  std::vector<std::uint64_t> largest() const {
    std::vector<std::uint64_t> result = progress_->largest;
    policy_->raise(result);
    return result;
  }

 private:
  void load(std::size_t step) {
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
  void enter(std::size_t step, std::size_t skipped = 0) {
    step_ = step;
    policy_ = policies_[step].get();
    progress_->history.resize(skipped);
    policy_->begin(skipped);
    if (step >= table_.loop_begin && step < table_.loop_end) {
      loop_next_ = step + 1 < table_.loop_end ? step + 1 : table_.loop_begin;
    }
  }
  bool finds_turn(std::uint64_t bytes) {
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
  std::size_t match_another(std::uint64_t bytes) {
    const std::size_t chosen = another_like_this();
    if (chosen == kNoMatch) return policy_->search(bytes);
    const bool was_in_loop = step_ < table_.loop_end;
    const std::size_t due = was_in_loop ? step_ : loop_next_;
    enter(chosen, progress_->history.size() - 1);
    // The step that it seemed to be is still due.
    if (chosen >= table_.loop_end) loop_next_ = due;
    return policy_->match(bytes);
  }
  // The step that begins like this one so far, or kNoMatch.
  std::size_t another_like_this() const {
    const std::size_t begin = table_.loop_begin, loop = table_.loop_end - begin;
    for (std::size_t i = 0; begin + i < table_.steps.size(); ++i) {
      // The loop's steps from the one that is due next, then the other kinds.
      const std::size_t turn = i < loop ? (loop_next_ - begin + i) % loop : i;
      const std::size_t step = begin + turn;
      if (step != step_ && policies_[step]->begins_like(progress_->history))
        return step;
    }
    return kNoMatch;
  }

  Table table_;
  std::unique_ptr<Progress> progress_;
  std::vector<std::unique_ptr<Policy>> policies_;  // per step
  std::unique_ptr<Search> search_;  // of a table without marks
  Policy* policy_ = nullptr;  // in force
  std::size_t step_ = 0;
  std::size_t loop_next_ = 0;  // the loop's step that is due next
};

}  // namespace memplan
