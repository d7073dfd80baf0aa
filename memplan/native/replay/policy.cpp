#include "replay/policy.h"

#include <utility>

namespace memplan {
namespace {

// How many entries ahead of the last match, and behind it, a request may be matched:
// threads that allocate side by side swap places by a few.
constexpr std::size_t kWindow = 64;
// A step of a warm-up does more or less than planned if a request comes this many places
// away from its own.
constexpr std::size_t kNearly = 16;
// How many of a step's first requests may come in another order.
constexpr std::size_t kSwapped = 4;
constexpr std::uint64_t kTelling = 1 << 16;  // bytes; smaller ones have a size by chance
// Without marks: how many requests identify a step, and how many of a step may miss
// before the loop counts as left.
constexpr std::size_t kPrefix = 8;
constexpr std::size_t kMissed = 16;

// In nearly the planned order, by exact size: what exact order and the warm-up share.
class InOrder : public Policy {
 public:
  using Policy::Policy;

  void begin(std::size_t skipped) override {
    seen_ = skipped;
    in_order_ = true;
    cursor_ = reach_ = first_ + skipped;
    const auto used = progress_.used.begin();
    std::fill(used + static_cast<std::ptrdiff_t>(first_),
              used + static_cast<std::ptrdiff_t>(last_), false);
  }
  std::size_t next() const override { return reach_; }
  bool in_order() const override { return in_order_; }

 protected:
  // The entry expected next, if it is of `bytes` and all before it came in order.
  std::size_t take_expected(std::uint64_t bytes) {
    const std::size_t expected = first_ + seen_++;
    const bool comes = in_order_ && expected < last_ && requests_[expected].size == bytes;
    return comes ? take(expected) : kNoMatch;
  }
  std::size_t take_nearby(std::uint64_t bytes) {
    in_order_ = false;
    const std::size_t end = std::min(last_, reach_ + kWindow);
    for (std::size_t i = cursor_; i < end; ++i) {
      if (!progress_.used[i] && requests_[i].size == bytes) return take(i);
    }
    return kNoMatch;
  }
  std::size_t take(std::size_t entry) {
    progress_.used[entry] = true;
    reach_ = std::max(reach_, entry + 1);
    // Entries that the program passed without a request are given up.
    if (reach_ > kWindow) cursor_ = std::max(cursor_, reach_ - kWindow);
    while (cursor_ < reach_ && progress_.used[cursor_]) ++cursor_;
    return entry;
  }

  bool in_order_ = true;  // all requests matched, one after the other

 private:
  std::size_t cursor_ = 0;  // no unused entry of the step lies below it
  std::size_t reach_ = 0;   // one past the last entry matched
};

class WarmUp final : public InOrder {
 public:
  using InOrder::InOrder;
  std::size_t match(std::uint64_t bytes) override {
    const std::size_t found = take_expected(bytes);
    return found != kNoMatch ? found : take_nearby(bytes);
  }
};

// A warm-up whose sizes differ from run to run, or which does more or less. Weights,
// gradients and the optimizer's state keep their sizes and are matched by them; all else
// is matched by position.
class SizeApart final : public InOrder {
 public:
  using InOrder::InOrder;

  void begin(std::size_t skipped) override {
    InOrder::begin(skipped);
    kept_.clear();
    std::vector<std::uint64_t> sizes;
    for (std::size_t i = first_; i < last_; ++i) {
      if (requests_[i].offset < 0) sizes.push_back(requests_[i].size);
    }
    std::sort(sizes.begin(), sizes.end());
    for (std::size_t i = first_; i < last_; ++i) {
      const std::uint64_t size = requests_[i].size;
      if (std::binary_search(sizes.begin(), sizes.end(), size)) kept_.emplace_back(size, i);
    }
    std::sort(kept_.begin(), kept_.end());
  }
  std::size_t match(std::uint64_t bytes) override {
    const std::size_t expected = first_ + seen_;
    std::size_t found = take_expected(bytes);
    if (found == kNoMatch) {
      in_order_ = false;
      if (keeps(bytes)) {
        found = take_kept(expected, bytes);
      } else {
        found = take_nearby(bytes);
        if (found == kNoMatch) found = take_planned(expected);
      }
    }
    progress_.previous = bytes;
    return found;
  }
  bool end() override {
    kept_ = {};
    return InOrder::end();
  }
  bool keeps(std::uint64_t bytes) const override {
    const auto at = of_size(bytes);
    return at != kept_.end() && at->first == bytes;
  }

 private:
  using Sized = std::pair<std::uint64_t, std::size_t>;  // a size, and an entry of it

  std::vector<Sized>::const_iterator of_size(std::uint64_t bytes) const {
    return std::lower_bound(kept_.begin(), kept_.end(), Sized{bytes, 0});
  }
  // A weight, its gradient, and its optimizer state have one size. The request before
  // distinguishes them, or the position if it is nearly the planned one.
  std::size_t take_kept(std::size_t expected, std::uint64_t bytes) {
    std::size_t found = kNoMatch, near = kNoMatch, apart = kNearly;
    for (auto at = of_size(bytes); at != kept_.end() && at->first == bytes; ++at) {
      const std::size_t entry = at->second;
      if (progress_.used[entry]) continue;
      const std::size_t by = entry < expected ? expected - entry : entry - expected;
      if (by < apart) {
        near = entry;
        apart = by;
      }
      const bool after = entry > first_ && requests_[entry - 1].size == progress_.previous;
      if (after && found == kNoMatch) found = entry;
    }
    if (found == kNoMatch) found = near;
    if (found != kNoMatch) progress_.used[found] = true;
    return found;
  }
  std::size_t take_planned(std::size_t expected) {
    const std::size_t end = std::min(last_, expected + kWindow);
    for (std::size_t i = expected; i < end; ++i) {
      if (!progress_.used[i] && requests_[i].offset >= 0) return take(i);
    }
    return kNoMatch;
  }

  // All requests of a size that something unplanned has, by size and in order.
  std::vector<Sized> kept_;
};

class ExactOrder : public InOrder {
 public:
  using InOrder::InOrder;

  std::size_t match(std::uint64_t bytes) override {
    const std::size_t position = seen_;
    const std::size_t found = take_expected(bytes);
    if (position < kHistory) progress_.history.push_back(bytes);
    if (found != kNoMatch) return found;
    return position < kHistory ? kMaybeAnother : search(bytes);
  }
  std::size_t search(std::uint64_t bytes) override {
    if (between_ && next() == first_ && !begins_with(bytes)) {
      seen_ = 0;  // it is not of the step
      progress_.history.clear();
      return kNoMatch;
    }
    return take_nearby(bytes);
  }
  bool begins_like(const std::vector<std::uint64_t>& history) const override {
    if (last_ - first_ < history.size()) return false;
    const Request* const begin = requests_ + first_;
    // The latest request is the one that differs in most steps.
    return begin[history.size() - 1].size == history.back() &&
           std::equal(history.begin(), history.end() - 1, begin,
                      [](std::uint64_t asked, const Request& planned) {
                        return asked == planned.size;
                      });
  }

 private:
  // Whether a request of `bytes` may be the step's first.
  bool begins_with(std::uint64_t bytes) const {
    const Request* const begin = requests_ + first_;
    if (first_ < last_ && begin->size == bytes) return true;
    return bytes >= kTelling &&
           std::any_of(begin, begin + std::min(kSwapped, last_ - first_),
                       [&](const Request& planned) { return planned.size == bytes; });
  }
};

class Unmarked final : public ExactOrder {
 public:
  using ExactOrder::ExactOrder;

  void begin(std::size_t skipped) override {
    ExactOrder::begin(skipped);
    missed_ = 0;
  }
  std::size_t search(std::uint64_t bytes) override {
    const std::size_t found = ExactOrder::search(bytes);
    if (found == kNoMatch) ++missed_;
    return found;
  }
  bool lost() const override { return missed_ >= kMissed; }

 private:
  std::size_t missed_ = 0;  // requests of this step that are none of the table's
};

// Profile-guided memory optimization, section 4.3. Requests are matched by position
// alone, so an evaluation would pass for a training step of other sizes. But most
// requests of a loop have one size whatever the batch (gradients, statistics). A step in
// which too many of those differ, or which ends after more or fewer requests, is a stray:
// nothing is learnt from it.
class ByPosition final : public Policy {
 public:
  using Policy::Policy;

  void begin(std::size_t) override {
    seen_ = differing_ = 0;
    stray_ = outgrown_ = false;
  }
  std::size_t match(std::uint64_t bytes) override {
    const std::size_t entry = first_ + seen_++;
    if (entry >= last_) stray_ = true;
    if (stray_) return kNoMatch;
    progress_.history.push_back(bytes);
    const std::uint64_t usual = progress_.usual[entry];
    differing_ += usual != kUnknown && usual != kVaries && usual != bytes;
    stray_ = progress_.whole >= kLearning && differing_ > kFew + seen_ / 8;
    if (stray_) return kNoMatch;
    // A request that is too large would overlap those planned after it: the rest of the
    // step goes without the plan.
    if (bytes > requests_[entry].size) outgrown_ = true;
    return outgrown_ ? kNoMatch : entry;
  }
  bool end() override {
    if (stray()) return false;
    for (std::size_t i = first_; i < last_; ++i) {
      const std::uint64_t asked = progress_.history[i - first_];
      std::uint64_t& usual = progress_.usual[i];
      if (usual == kUnknown) usual = asked;
      if (usual != asked) usual = kVaries;
    }
    raise(progress_.largest);
    ++progress_.whole;
    return true;
  }
  std::size_t next() const override { return first_ + seen_; }
  bool outgrown() const override { return outgrown_; }
  void raise(std::vector<std::uint64_t>& sizes) const override {
    if (stray()) return;
    for (std::size_t i = first_; i < last_; ++i) {
      sizes[i] = std::max(sizes[i], progress_.history[i - first_]);
    }
  }

 private:
  static constexpr std::uint64_t kUnknown = 0;
  static constexpr std::uint64_t kVaries = ~std::uint64_t{0};
  static constexpr std::size_t kFew = 16;     // may differ in any step
  static constexpr std::size_t kLearning = 8;  // whole steps until a size is known

  bool stray() const { return stray_ || seen_ != last_ - first_; }

  std::size_t differing_ = 0;  // requests of another size than ever before
  bool stray_ = false;
  bool outgrown_ = false;
};

class ByLifespan final : public Policy {
 public:
  using Policy::Policy;
  void begin(std::size_t) override { seen_ = 0; }
  std::size_t match(std::uint64_t) override {
    const std::size_t entry = first_ + seen_++;
    return entry < last_ ? entry : kNoMatch;
  }
  std::size_t next() const override { return first_ + seen_; }
};

class NoPlan final : public Policy {
 public:
  using Policy::Policy;
  void begin(std::size_t) override {}
  std::size_t match(std::uint64_t) override { return kNoMatch; }
  std::size_t next() const override { return 0; }
};

std::unique_ptr<Policy> policy_of(const Table& table, std::size_t index,
                                  Progress& progress) {
  const Step& step = table.steps[index];
  const bool warmup = index < table.loop_begin;
  if (step.elastic && table.by_lifespan) {
    return std::make_unique<ByLifespan>(table, step, progress);
  }
  if (step.elastic) return std::make_unique<ByPosition>(table, step, progress);
  if (warmup && table.by_lifespan) {
    return std::make_unique<SizeApart>(table, step, progress);
  }
  if (warmup) return std::make_unique<WarmUp>(table, step, progress);
  if (table.unmarked) return std::make_unique<Unmarked>(table, step, progress);
  return std::make_unique<ExactOrder>(table, step, progress);
}

}  // namespace

Progress::Progress(std::size_t requests)
    : used(requests), usual(requests), largest(requests) {
  history.reserve(Policy::kHistory);
}

bool Search::finds(std::uint64_t bytes) {
  const std::size_t prefix = std::min(kPrefix, last_ - first_);
  recent_.push_back(bytes);
  if (recent_.size() > prefix) recent_.erase(recent_.begin());
  return recent_.size() == prefix &&
         std::equal(recent_.begin(), recent_.end(), requests_ + first_,
                    [](std::uint64_t asked, const Request& planned) {
                      return asked == planned.size;
                    });
}

const std::vector<std::uint64_t>& Search::before() {
  if (!recent_.empty()) recent_.pop_back();
  return recent_;
}

std::vector<std::unique_ptr<Policy>> policies_of(const Table& table, Progress& progress) {
  std::vector<std::unique_ptr<Policy>> policies;
  policies.reserve(std::max<std::size_t>(table.steps.size(), 1));
  for (std::size_t i = 0; i < table.steps.size(); ++i) {
    policies.push_back(policy_of(table, i, progress));
  }
  if (policies.empty()) {
    policies.push_back(std::make_unique<NoPlan>(table, Step{0, 0, false}, progress));
  }
  return policies;
}

}  // namespace memplan
