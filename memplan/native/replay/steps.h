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
#include <vector>

#include "replay/policy.h"
#include "replay/table.h"

namespace memplan {

class Steps {
 public:
  explicit Steps(Table table);
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
  void next_step();
  // From the next request on, follow another table, from its first repeated step.
  void adopt(Table table);

  const Table& table() const { return table_; }
  const Policy& policy() const { return *policy_; }
  // The step being followed, or the last one that was.
  std::size_t step() const { return step_; }
  bool warming_up() const { return step_ < table_.loop_begin; }
  // Whether the warm-up is over; without marks, whether the loop is being followed.
  bool looped() const { return !warming_up() && policy_ != search_.get(); }
  // Per request of the table, the most bytes asked for in its place; of elastic steps
  // that came in full.
  std::vector<std::uint64_t> largest() const;

 private:
  void load(std::size_t step);
  void enter(std::size_t step, std::size_t skipped = 0);
  bool finds_turn(std::uint64_t bytes);
  std::size_t match_another(std::uint64_t bytes);
  // The step that begins like this one so far, or kNoMatch.
  std::size_t another_like_this() const;

  Table table_;
  std::unique_ptr<Progress> progress_;
  std::vector<std::unique_ptr<Policy>> policies_;  // per step
  std::unique_ptr<Search> search_;                 // of a table without marks
  Policy* policy_ = nullptr;                       // in force
  std::size_t step_ = 0;
  std::size_t loop_next_ = 0;  // the loop's step that is due next
};

}  // namespace memplan
