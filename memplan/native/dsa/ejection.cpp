#include "dsa/ejection.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

namespace memplan::dsa {
namespace {

using Clock = std::chrono::steady_clock;

// No weight of life is the best everywhere, nor is the choice of gaps.
constexpr std::array<Temper, 4> kTempers = {{
    {0.5, false, 1.0},
    {1.0, true, 1.0},
    {0.5, true, 0.4},
    {0.0, false, 2.0},
}};
// Of very many blocks each lane takes much memory, and long to come anywhere.
constexpr std::int32_t kMany = 50'000;
constexpr std::size_t kLanesForMany = 2;

constexpr std::int64_t kWorkARound = 2'000'000;  // of each lane: some milliseconds

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Ejection::Ejection(const Blocks& blocks, std::span<const std::int64_t> fixed,
                   std::span<const std::int64_t> offsets, std::uint64_t seed)
    : grounds_(blocks, fixed) {
  const std::vector<std::int64_t> first = renumbered(offsets);
  Random seeds(seed);
  const std::size_t count = grounds_.size() > kMany ? kLanesForMany : kTempers.size();
  for (std::size_t k = 0; k < count; ++k) {
    lanes_.push_back(std::make_unique<EjectionLane>(grounds_, kTempers[k], seeds.bits(),
                                                    first));
  }
}

void Ejection::offer(std::span<const std::int64_t> offsets) {
  const std::vector<std::int64_t> packing = renumbered(offsets);
  std::int64_t offered = 0;
  for (std::size_t k = 0; k < packing.size(); ++k) {
    offered = std::max(offered, packing[k] + grounds_.bytes[k]);
  }
  if (offered >= peak()) return;
  const auto worst = std::ranges::max_element(
      lanes_, {}, [](const auto& lane) { return lane->peak(); });
  (*worst)->adopt(packing);
  share();
}

std::vector<std::int64_t> Ejection::renumbered(
    std::span<const std::int64_t> offsets) const {
  std::vector<std::int64_t> packing;
  for (const std::int32_t i : grounds_.original) packing.push_back(offsets[i]);
  return packing;
}

void Ejection::advance(const Limits& limits) {
  const auto start = Clock::now();
  while (peak() > limits.goal && placed() < limits.placements &&
         worked() < limits.work) {
    const double spent = seconds_since(start);
    if (spent >= limits.seconds || spent >= limits.hard_seconds) return;
    play(limits, limits.hard_seconds - spent);
    share();
  }
}

std::int64_t Ejection::placed() const {
  std::int64_t placed = 0;
  for (const auto& lane : lanes_) placed += lane->placed();
  return placed;
}

std::int64_t Ejection::worked() const {
  std::int64_t worked = 0;
  for (const auto& lane : lanes_) worked += lane->worked();
  return worked;
}

std::vector<std::int64_t> Ejection::offsets() const {
  std::vector<std::int64_t> offsets(grounds_.original.size());
  for (std::size_t k = 0; k < offsets.size(); ++k) {
    offsets[grounds_.original[k]] = lanes_[best_]->best()[k];
  }
  return offsets;
}

/// A round of every lane, on so many threads.
void Ejection::play(const Limits& limits, double left) {
  const auto start = Clock::now();
  const std::function<bool()> stop = [&] { return seconds_since(start) >= left; };
  std::atomic<std::size_t> next_lane{0};
  const auto work = [&] {
    for (std::size_t k; (k = next_lane++) < lanes_.size();) {
      lanes_[k]->run(limits.goal, kWorkARound, stop);
    }
  };
  const int most = static_cast<int>(lanes_.size());
  const auto threads = static_cast<std::size_t>(std::clamp(limits.threads, 1, most));
  std::vector<std::exception_ptr> failures(threads);
  {
    std::vector<std::jthread> helpers;
    const auto guarded = [&](std::size_t k) {
      try {
        work();
      } catch (...) {  // out of memory: say so where the caller can hear it
        failures[k] = std::current_exception();
      }
    };
    for (std::size_t k = 1; k < threads; ++k) helpers.emplace_back(guarded, k);
    guarded(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

/// Lanes whose roof is no lower than the best peak go on from there.
void Ejection::share() {
  for (std::size_t k = 0; k < lanes_.size(); ++k) {
    if (lanes_[k]->peak() < lanes_[best_]->peak()) best_ = k;
  }
  const EjectionLane& best = *lanes_[best_];
  for (const auto& lane : lanes_) {
    const bool vain = lane->roof() < 0 || lane->roof() >= best.peak();
    if (lane->peak() > best.peak() && vain) lane->adopt(best.best());
  }
}

}  // namespace memplan::dsa
