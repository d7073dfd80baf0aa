#include "dsa/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <thread>

namespace memplan::dsa {
namespace {

using Clock = std::chrono::steady_clock;

// A round should last some milliseconds: this many blocks placed by each lane.
constexpr std::size_t kBlocksARound = 1 << 15;

constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

/// Every lane packs `orders` orders, or fewer once the goal is reached. The winner is
/// whoever needs the fewest, the first lane among equals: lanes that could still win
/// go on, so that it is the same one however they are spread over threads.
struct Search::Round {
  std::int64_t orders, goal, below;
  double seconds;
  Clock::time_point start;
  std::atomic<std::size_t> next_lane{0};
  std::atomic<std::int64_t> first{kNobody};
  std::atomic<bool> cut_short{false};

  void win(std::int64_t key) {
    std::int64_t seen = first;
    while (key < seen && !first.compare_exchange_weak(seen, key)) {
    }
  }
};

Search::Search(const Blocks& blocks, std::span<const std::int64_t> fixed,
               std::vector<std::vector<double>> classic, std::uint64_t seed,
               const std::optional<Pieces>& pieces)
    : blocks_(blocks),
      fixed_(fixed),
      terrain_{cut_into_sections(blocks.lower, blocks.upper, blocks.period),
               blocks.size, blocks.peaks(), {}, std::move(classic)} {
  for (std::size_t i = 0; i < blocks.size.size(); ++i) {
    if (fixed.empty() || fixed[i] < 0) {
      terrain_.movable.push_back(static_cast<std::int32_t>(i));
    }
  }
  if (pieces) board_.emplace(*pieces, blocks.size.size());
  Random seeds(seed);
  for (std::size_t k = 0; k < terrain_.classic.size(); ++k) {
    lanes_.emplace_back(terrain_, k, seeds.bits());
  }
}

void Search::advance(const Limits& limits) {
  const auto start = Clock::now();
  const auto lanes = static_cast<std::int64_t>(lanes_.size());
  const std::size_t blocks = std::max<std::size_t>(terrain_.movable.size(), 1);
  const auto longest =
      static_cast<std::int64_t>(std::max<std::size_t>(kBlocksARound / blocks, 1));
  if (terrain_.movable.empty()) return;
  while (best_.peak > limits.goal && packed_ < limits.orders &&
         seconds_since(start) < limits.seconds) {
    const std::int64_t wanted = (limits.orders - packed_ + lanes - 1) / lanes;
    Round round{std::min(longest, wanted), limits.goal, limits.below,
                limits.hard_seconds, start};
    play(round, std::clamp(limits.threads, 1, static_cast<int>(lanes)));
    packed_ += round.orders * lanes;

    if (round.first != kNobody) {
      best_ = lanes_[static_cast<std::size_t>(round.first % lanes)].best();
      return;
    }
    for (const Lane& lane : lanes_) {
      if (lane.best().peak < best_.peak) best_ = lane.best();
    }
    if (round.cut_short) return;
  }
}

void Search::play(Round& round, int threads) {
  const auto count = static_cast<std::int64_t>(lanes_.size());
  const auto work = [&](Packer& packer) {
    for (;;) {
      const std::size_t index = round.next_lane++;
      if (index >= lanes_.size()) return;
      Lane& lane = lanes_[index];
      for (std::int64_t k = 0; k < round.orders; ++k) {
        const std::int64_t key = k * count + static_cast<std::int64_t>(index);
        if (key > round.first) break;
        if (seconds_since(round.start) >= round.seconds) {
          round.cut_short = true;
          return;
        }
        lane.step(packer, best_, round.below);
        if (lane.best().peak <= round.goal) {
          round.win(key);
          break;
        }
      }
    }
  };
  while (packers_.size() < static_cast<std::size_t>(threads)) {
    packers_.push_back(new_packer());
  }
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> helpers;
    const auto guarded = [&](std::size_t k) {
      try {
        work(*packers_[k]);
      } catch (...) {  // out of memory: say so where the caller can hear it
        failures[k] = std::current_exception();
      }
    };
    for (std::size_t k = 1; k < failures.size(); ++k) helpers.emplace_back(guarded, k);
    guarded(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

std::unique_ptr<Packer> Search::new_packer() const {
  if (board_) return std::make_unique<PiecePacker>(*board_, blocks_, fixed_);
  if (terrain_.movable.size() < blocks_.size.size()) {
    return std::make_unique<GapPacker>(blocks_, fixed_);
  }
  const bool plain = blocks_.period == 0 && blocks_.alignment.empty();
  if (plain && blocks_.size.size() <= ListPacker::kMostBlocks) {
    return std::make_unique<ListPacker>(terrain_.sections, blocks_.size,
                                        blocks_.peaks());
  }
  return std::make_unique<TreePacker>(blocks_);
}

}  // namespace memplan::dsa
