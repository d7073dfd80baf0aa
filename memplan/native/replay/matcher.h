// Follows a program through the steps of a plan, request by request.
//
// The plan is a list of steps, each a sequence of requests. The first ones are the
// program's warm-up; the next ones repeat for ever; then come steps of other kinds
// (a short last batch, an evaluation), any of which may stand in place of a repeated
// one. Which kind a step is shows in its first requests: as soon as they depart from
// the step expected and agree with another, that one is followed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "replay/elastic.h"
#include "replay/table.h"

namespace memplan {

class Matcher {
 public:
  static constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);

  explicit Matcher(Table table);

  // The table's request that is one of `bytes`, or kNoMatch.
  std::size_t match(std::uint64_t bytes);
  // Of a table without marks: whether a request of `bytes` is the first of a step, or
  // shows that one has begun. Then `next_step` comes before `match`.
  bool turns(std::uint64_t bytes);
  // The program begins its next step. One that asked for nothing stood for none of the
  // loop's.
  void next_step();
  // From the next request on, go by another table, from its first repeated step.
  void adopt(Table table);

  const Table& table() const { return table_; }
  // Whether the warm-up is over; without marks, whether the loop is being followed.
  bool looped() const { return !lost_ && step_ >= table_.loop_begin; }
  // Which step is being followed; in the loop, or of another kind.
  std::size_t step() const { return step_; }
  // The table's request that comes after all that were matched in this step.
  std::size_t next() const {
    const bool inside = step_ < table_.steps.size();
    const bool elastic = inside && table_.steps[step_].elastic;
    return elastic ? table_.steps[step_].first + seen_ : reach_;
  }
  // Whether this step, an elastic one, has asked for more than planned.
  bool outgrown() const { return outgrown_; }
  // Per request of the table, the most bytes asked for in its place; of elastic steps
  // that came by whole.
  std::vector<std::uint64_t> largest() const { return elastic_.largest(); }
  // Whether this is a step of the warm-up, by lifespan, in which something of so many bytes
  // is not planned.
  bool keeps(std::uint64_t bytes) const { return of_kept_size(bytes) != of_kept_.end(); }
  // Whether all of this step's requests so far came as planned, sizes and all.
  bool in_order() const {
    return in_order_ && !lost_ && step_ < table_.steps.size() && !table_.steps[step_].elastic;
  }

 private:
  void enter(std::size_t step);
  std::size_t match_by_position(std::uint64_t bytes);
  std::size_t match_nearby(std::uint64_t bytes);
  std::size_t match_size_apart(std::size_t expected);
  void index_kept(const Step& step);
  std::size_t match_kept(std::size_t expected, std::uint64_t bytes);
  using Sized = std::pair<std::uint64_t, std::size_t>;  // a size, and the request of it
  std::vector<Sized>::const_iterator of_kept_size(std::uint64_t bytes) const {
    const auto found = std::lower_bound(of_kept_.begin(), of_kept_.end(), Sized{bytes, 0});
    return found != of_kept_.end() && found->first == bytes ? found : of_kept_.end();
  }
  bool follow_another(std::uint64_t bytes);
  // The step that this one, so far, and a request of `bytes` begin; or kNoMatch.
  std::size_t another_like(std::uint64_t bytes) const;
  bool begins_like_this(std::size_t step, std::uint64_t bytes) const;
  std::size_t take(std::size_t entry);
  void lose();

  Table table_;
  std::size_t step_ = 0;
  std::size_t loop_next_ = 0;  // the loop's step that is to come next
  std::size_t cursor_ = 0;     // no unused entry of the step lies below it
  std::size_t reach_ = 0;      // one past the last entry matched
  std::size_t seen_ = 0;       // requests in this step so far
  bool in_order_ = true;       // all of them matched, one after the other
  bool outgrown_ = false;
  bool lost_ = false;          // without marks: not in the loop, as far as can be told
  std::size_t missed_ = 0;     // requests of this step that none of the table's is
  std::vector<bool> used_;
  std::vector<std::uint64_t> history_;  // sizes of this step's first requests
  // Of this step, one of a warm-up by lifespan: all requests of a size that something has
  // that is not planned, by size and in order.
  std::vector<Sized> of_kept_;
  std::uint64_t previous_ = 0;  // bytes of the request before
  std::vector<std::uint64_t> recent_;   // while lost: the sizes of the last requests
  ElasticStep elastic_;
};

}  // namespace memplan
