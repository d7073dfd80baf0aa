// What the exact search may place next, and in which order.
#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <string_view>

#include "dsa/exact_search.h"
#include "dsa/random.h"

namespace memplan::dsa {

// Another ranking, and how long to keep it: Luby's sequence, which is within a constant
// factor of the best there is.
template <class V>
void Search<V>::rank_anew() {
  constexpr std::string_view kOrders[] = {"TWA", "TZW", "CTA", "AWT", "OAT", "WAT"};
  constexpr std::int64_t kNodes = 1000;
  Random random(seed_ * 1'000'003 + static_cast<std::uint64_t>(++restarts_));
  const std::string order(kOrders[random.below(std::size(kOrders))]);
  tightest_ = rules_.tightest && random.below(8) != 0;
  rightmost_ = random.below(2) != 0;
  room_ = capacity_ / (V{8} << random.below(4));
  ranking_.change(order, random.bits(), 0.5 * random.uniform());
  std::int64_t k = restarts_;
  while ((k & (k + 1)) != 0) {
    k -= static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(k))) - 1;
  }
  restart_at_ = nodes_ + kNodes * (k + 1) / 2;
}

// Appends to pool_ what may be placed next, in the order of (offset, rank).
template <class V>
void Search<V>::list_candidates(std::size_t items, Range range, V last) {
  const std::size_t end = pool_.size();
  V roof = 2 * (capacity_ + model_->most_beyond) + 1;
  for (std::size_t i = items; i < end; ++i) roof = std::min(roof, state_.top(pool_[i]));
  candidates_.clear();
  for (std::size_t i = items; i < end; ++i) {
    const std::int32_t k = pool_[i];
    if (rules_.dominance && state_.least(k) >= roof) continue;
    if (rules_.forced && bounds_.offset(i - items) > state_.least(k)) continue;
    if (rules_.canonical && (state_.least(k) < last || state_.barred(k))) continue;
    const std::int32_t twin = model_->twin[k];
    if (rules_.symmetry && twin >= 0 && state_.waits(twin)) continue;
    candidates_.emplace_back(state_.least(k), static_cast<std::int32_t>(i));
  }
  std::sort(candidates_.begin(), candidates_.end());
  if (tightest_) keep_tightest(range, roof);
  for (const auto& [offset, i] : candidates_) pool_.push_back(pool_[i]);
}

// In a section that leaves no room beneath whatever may be placed next, the lowest of
// what waits must be a candidate. Where the candidates in such a section all begin at
// the lowest offset, one of them does lie there, and it may be placed at once: only
// these are kept, of the section that has the fewest.
template <class V>
void Search<V>::keep_tightest(Range range, V roof) {
  if (candidates_.size() < 2) return;
  const auto each_section = [&](std::int32_t k, const auto& visit) {
    for (auto s = model_->start[k]; s < model_->end[k]; ++s) visit(s);
    for (auto s = 0; s < model_->end_again[k]; ++s) visit(s);
  };
  const V lowest = candidates_.front().first, most = capacity_ + model_->most_beyond;
  constexpr std::int32_t kHigher = 1 << 20;
  std::fill(options_.begin() + range.first, options_.begin() + range.end, 0);
  for (const auto& [offset, i] : candidates_) {
    const std::int32_t add = offset > lowest ? kHigher : 1;
    each_section(pool_[i], [&, at = offset](std::int32_t s) {
      if (at <= most - state_.remaining()[s]) options_[s] += add;
    });
  }
  const auto fewest_below = [&](V limit) {
    std::int32_t best = -1, fewest = std::min<std::int32_t>(
        kHigher, static_cast<std::int32_t>(candidates_.size()));
    for (std::int32_t s = range.first; s < range.end; ++s) {
      const V remaining = state_.remaining()[s];
      if (remaining == 0 || most - remaining >= limit) continue;
      if (options_[s] < fewest || (rightmost_ && best >= 0 && options_[s] == fewest)) {
        fewest = options_[s];
        best = s;
      }
    }
    return best;
  };
  std::int32_t best = fewest_below(roof);
  const auto elsewhere = [&](const auto& candidate) {
    bool there = false;
    each_section(pool_[candidate.second], [&](std::int32_t s) { there |= s == best; });
    return !there;
  };
  if (best >= 0) {
    std::erase_if(candidates_, elsewhere);
    return;
  }
  // Nothing must lie there; but where there is little room, it had better.
  best = fewest_below(roof + room_);
  if (best < 0) return;
  const auto end = std::find_if(candidates_.begin(), candidates_.end(),
                                [&](auto& one) { return one.first > lowest; });
  std::stable_partition(candidates_.begin(), end, std::not_fn(elsewhere));
}

template void Search<std::int32_t>::rank_anew();
template void Search<std::int64_t>::rank_anew();
template void Search<std::int32_t>::list_candidates(std::size_t, Range, std::int32_t);
template void Search<std::int64_t>::list_candidates(std::size_t, Range, std::int64_t);
template void Search<std::int32_t>::keep_tightest(Range, std::int32_t);
template void Search<std::int64_t>::keep_tightest(Range, std::int64_t);

}  // namespace memplan::dsa
