#include "dsa/exact.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include "dsa/exact_search.h"

namespace memplan::dsa {

// A search of either width.
class Portfolio::Lane {
 public:
  virtual ~Lane() = default;
  virtual Verdict run(std::int64_t nodes, const StopSign& stop) = 0;
  virtual std::vector<std::int64_t> offsets() const = 0;
  virtual std::int64_t nodes() const = 0;
};

namespace {

template <class V>
class Ranked final : public Portfolio::Lane {
 public:
  Ranked(std::shared_ptr<const Model<V>> model, const std::string& order,
         std::int64_t capacity)
      : model_(std::move(model)), search_(*model_, order, static_cast<V>(capacity)) {}

  Verdict run(std::int64_t nodes, const StopSign& stop) override {
    return search_.run(nodes, stop);
  }
  std::vector<std::int64_t> offsets() const override {
    return {search_.offsets().begin(), search_.offsets().end()};
  }
  std::int64_t nodes() const override { return search_.nodes(); }

 private:
  std::shared_ptr<const Model<V>> model_;
  Search<V> search_;
};

template <class V>
std::vector<std::unique_ptr<Portfolio::Lane>> lanes_for(
    const Instance& instance, const std::vector<std::string>& orders,
    std::int64_t capacity) {
  const auto model = std::make_shared<const Model<V>>(model_of<V>(instance));
  std::vector<std::unique_ptr<Portfolio::Lane>> lanes;
  for (const std::string& order : orders) {
    lanes.push_back(std::make_unique<Ranked<V>>(model, order, capacity));
  }
  return lanes;
}

// Some threads that all call `work` once in a round; after it one of them calls `end`,
// which tells whether it was the last.
template <class Work, class End>
void in_rounds(int threads, const Work& work, const End& end) {
  bool over = false;
  std::barrier gate(threads, [&]() noexcept { over = end(); });
  const auto loop = [&] {
    do {
      work();
      gate.arrive_and_wait();
    } while (!over);
  };
  std::vector<std::jthread> others;
  others.reserve(threads);
  try {
    for (int i = threads; i > 1; --i) others.emplace_back(loop);
  } catch (const std::system_error&) {
    // There are no more threads to be had: go on with those there are.
    for (int i = threads - static_cast<int>(others.size()); i > 1; --i) {
      gate.arrive_and_drop();
    }
  }
  loop();
}

// Sums of two offsets and a size must not overflow.
bool fits_in_32_bits(const Instance& instance, std::int64_t capacity) {
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max() / 8;
  const auto most = [](const auto& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  };
  return capacity < limit && most(instance.blocks.size) < limit &&
         most(instance.blocks.alignment) < limit && most(instance.fixed) < limit;
}

}  // namespace

Portfolio::Portfolio(const Instance& instance, const std::vector<std::string>& orders,
                     std::int64_t capacity)
    : verdicts_(orders.size(), Verdict::kOpen) {
  lanes_ = fits_in_32_bits(instance, capacity)
               ? lanes_for<std::int32_t>(instance, orders, capacity)
               : lanes_for<std::int64_t>(instance, orders, capacity);
}

Portfolio::~Portfolio() = default;

Verdict Portfolio::run(std::int64_t rounds, std::int64_t slice, int threads,
                       const StopSign& stop) {
  winner_ = -1;
  if (rounds <= 0) return Verdict::kOpen;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < lanes_.size();) {
      verdicts_[i] = lanes_[i]->run(slice, stop);
    }
  };
  const auto end = [&] {
    next = 0;
    return --rounds == 0 || end_round() || stop.up();
  };
  in_rounds(std::clamp(threads, 1, static_cast<int>(lanes_.size())), work, end);
  end_round();
  return winner_ < 0 ? Verdict::kOpen : verdicts_[winner_];
}

bool Portfolio::end_round() {
  const auto ended = std::find_if(verdicts_.begin(), verdicts_.end(),
                                  [](auto v) { return v != Verdict::kOpen; });
  if (ended == verdicts_.end()) return false;
  winner_ = static_cast<int>(ended - verdicts_.begin());
  return true;
}

std::vector<std::int64_t> Portfolio::offsets() const {
  return lanes_.at(static_cast<std::size_t>(winner_))->offsets();
}

std::int64_t Portfolio::nodes() const {
  std::int64_t nodes = 0;
  for (const auto& lane : lanes_) nodes += lane->nodes();
  return nodes;
}

}  // namespace memplan::dsa
