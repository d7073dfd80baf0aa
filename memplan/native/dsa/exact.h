// Several rankings of one problem, searched in turn on all cores.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <variant>
#include <vector>

#include "dsa/exact_search.h"
#include "stop_sign.h"

namespace memplan::dsa {

/// One search per ranking, each with its own stack and memo; none starts over.
///
/// They go on in rounds, in each of which every search makes the same number of
/// placements. What comes out depends on the number of rounds alone, and not on the
/// number of threads or on their timing: of several that end in one round, the first
/// in the list counts.
class Portfolio {
 public:
  /// capacity: in the unit of the instance's sizes.
  Portfolio(const Instance& instance, const std::vector<std::string>& orders,
            std::int64_t capacity)
      : lanes_(lanes_for(instance, orders, capacity)),
        verdicts_(orders.size(), Verdict::kOpen) {}

  /// At most `rounds` of `slice` placements, fewer if a search ends or the sign is up.
  Verdict run(std::int64_t rounds, std::int64_t slice, int threads,
              const StopSign& stop) {
    winner_ = -1;
    if (rounds <= 0) return Verdict::kOpen;
    std::atomic<std::size_t> next = 0;
    const auto end = [&] {
      next = 0;
      return --rounds == 0 || end_round() || stop.up();
    };
    std::visit(
        [&](auto& lanes) {
          auto& searches = lanes.searches;
          const auto work = [&] {
            for (std::size_t i; (i = next.fetch_add(1)) < searches.size();) {
              verdicts_[i] = searches[i].run(slice, stop);
            }
          };
          const int most = static_cast<int>(searches.size());
          in_rounds(std::clamp(threads, 1, most), work, end);
        },
        lanes_);
    end_round();
    return winner_ < 0 ? Verdict::kOpen : verdicts_[winner_];
  }

  /// After Verdict::kFits: an offset per buffer.
  std::vector<std::int64_t> offsets() const {
    const auto of = [&](const auto& lanes) {
      const auto found = lanes.searches[winner_].offsets();
      return std::vector<std::int64_t>(found.begin(), found.end());
    };
    return std::visit(of, lanes_);
  }

  /// Placements of all searches together.
  std::int64_t nodes() const {
    std::int64_t nodes = 0;
    const auto add = [&](const auto& lanes) {
      for (const auto& search : lanes.searches) nodes += search.nodes();
    };
    std::visit(add, lanes_);
    return nodes;
  }

 private:
  template <class V>
  struct Lanes {
    Lanes(const Instance& instance, const std::vector<std::string>& orders,
          std::int64_t capacity)
        : model(std::make_unique<const Model<V>>(model_of<V>(instance))) {
      for (const std::string& order : orders) {
        searches.emplace_back(*model, order, static_cast<V>(capacity));
      }
    }
    std::unique_ptr<const Model<V>> model;
    std::deque<ExactSearch<V>> searches;
  };
  using EitherLanes = std::variant<Lanes<std::int32_t>, Lanes<std::int64_t>>;

  static EitherLanes lanes_for(const Instance& instance,
                               const std::vector<std::string>& orders,
                               std::int64_t capacity) {
    // Sums of two offsets and a size must not overflow.
    constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max() / 8;
    const auto most = [](const auto& values) {
      return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
    };
    const bool small = capacity < limit && most(instance.blocks.size) < limit &&
                       most(instance.blocks.alignment) < limit &&
                       most(instance.fixed) < limit;
    if (small) return Lanes<std::int32_t>(instance, orders, capacity);
    return Lanes<std::int64_t>(instance, orders, capacity);
  }

  // Some threads that all call `work` once in a round; after it one of them calls
  // `end`, which tells whether it was the last.
  template <class Work, class End>
  static void in_rounds(int threads, const Work& work, const End& end) {
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

  bool end_round() {
    const auto ended = std::find_if(verdicts_.begin(), verdicts_.end(),
                                    [](auto v) { return v != Verdict::kOpen; });
    if (ended == verdicts_.end()) return false;
    winner_ = static_cast<int>(ended - verdicts_.begin());
    return true;
  }

  EitherLanes lanes_;
  std::vector<Verdict> verdicts_;
  int winner_ = -1;  // the ranking whose search ended, or -1
};

}  // namespace memplan::dsa
