// How the requests of one step are matched with the plan: one policy for each step.
//
// | policy      | step                                     | a request is matched by      |
// |-------------|------------------------------------------|------------------------------|
// | exact order | of the loop, or of another kind          | size, in nearly the order    |
// | unmarked    | of a loop that no marks cut              | the same; ends by itself     |
// | warm-up     | before the loop                          | size, in nearly the order    |
// | size apart  | before the loop, blocks lie by lifespan  | size where it never changes, |
// |             |                                          | else position                |
// | by position | elastic                                  | position, if it fits         |
// | by lifespan | elastic, blocks lie by lifespan          | position, at any size        |
// | search      | outside an unmarked loop                 | nothing                      |
// | no plan     | of an empty table                        | nothing                      |
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "replay/table.h"

namespace memplan {

// In place of an index into the table's requests.
constexpr std::size_t kNoMatch = static_cast<std::size_t>(-1);

// What a table's policies share, as the program is in one step at a time.
struct Progress {
  explicit Progress(std::size_t requests);

  std::vector<bool> used;  // per request of the table: matched in this step
  // Sizes of this step's requests; where steps have exact sizes, of the first ones.
  std::vector<std::uint64_t> history;
  std::uint64_t previous = 0;  // bytes of the latest request of the warm-up
  // Of elastic steps, per request of the table: the size if it never changed, see
  // policy.cpp, and the largest.
  std::vector<std::uint64_t> usual;
  std::vector<std::uint64_t> largest;
  std::size_t whole = 0;  // elastic steps that came in full
};

class Policy {
 public:
  // What `match` returns if the program may be in another step than this one.
  static constexpr std::size_t kMaybeAnother = kNoMatch - 1;
  // How far into a step another one may still be recognised.
  static constexpr std::size_t kHistory = 512;

  // For requests [step.first, step.last) of `table`. Both must outlive the policy.
  Policy(const Table& table, const Step& step, Progress& progress)
      : requests_(table.requests.data()),
        first_(step.first),
        last_(step.last),
        between_(table.between),
        progress_(progress) {}
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;

  // The step begins. Its first `skipped` requests, those in `Progress::history`, were
  // served elsewhere.
  virtual void begin(std::size_t skipped) = 0;
  // The table's request that is one of `bytes`, kNoMatch, or kMaybeAnother: then either
  // another step's policy goes on, or `search` of this one.
  virtual std::size_t match(std::uint64_t bytes) = 0;
  virtual std::size_t search(std::uint64_t) { return kNoMatch; }
  // The step is over. Whether it was the plan's: an empty one, or one that the policy
  // does not recognise, was not.
  virtual bool end() { return seen_ > 0 || first_ == last_; }

  // The table's request after all those matched in this step.
  virtual std::size_t next() const = 0;
  // Whether all requests so far came as planned, in size and order.
  virtual bool in_order() const { return false; }
  // Whether a request was larger than planned, so that the plan no longer holds.
  virtual bool outgrown() const { return false; }
  // Whether something of so many bytes stays outside the arena, as planned, and is
  // recognised by its size.
  virtual bool keeps(std::uint64_t) const { return false; }
  // Whether too many requests are none of the plan's, and no mark ends the step.
  virtual bool lost() const { return false; }
  // Raises sizes per request of the table to this step's, if it came in full.
  virtual void raise(std::vector<std::uint64_t>&) const {}

  // Whether as many requests came as planned.
  bool complete() const { return seen_ >= last_ - first_; }
  // Whether this step's requests of exact sizes begin with `history`.
  virtual bool begins_like(const std::vector<std::uint64_t>&) const { return false; }

 protected:
  const Request* const requests_;  // the table's
  const std::size_t first_;
  const std::size_t last_;
  const bool between_;  // see Table
  Progress& progress_;
  std::size_t seen_ = 0;  // requests of this step so far
};

// Outside an unmarked loop: waits for the requests that a pass of the loop begins with.
class Search final : public Policy {
 public:
  using Policy::Policy;
  // Begins outside the loop, where `next` is what Policy::next was.
  void begin_at(std::size_t next) {
    next_ = next;
    begin(0);
  }
  void begin(std::size_t) override { recent_.clear(); }
  std::size_t match(std::uint64_t) override { return kNoMatch; }
  std::size_t next() const override { return next_; }
  // Whether a request of `bytes` shows that the loop has begun.
  bool finds(std::uint64_t bytes);
  // The requests of the loop's first step that came before it was found.
  const std::vector<std::uint64_t>& before();

 private:
  std::vector<std::uint64_t> recent_;  // sizes of the latest requests
  std::size_t next_ = 0;
};

// One policy for each step of the table; for one without steps, the policy of no plan.
std::vector<std::unique_ptr<Policy>> policies_of(const Table& table, Progress& progress);

}  // namespace memplan
