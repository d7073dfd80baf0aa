// Canonical branch and bound over packings, on a stack that can be left and resumed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsa/exact_bounds.h"
#include "dsa/exact_model.h"
#include "dsa/random.h"
#include "stop_sign.h"

namespace memplan::dsa {

enum class Verdict : std::uint8_t { kOpen, kFits, kNever };

/// Remembers failures of one search, at one capacity.
///
/// The key is all of a state: which buffers wait, the least offset of each, and which
/// of them are barred there. Keys are kept and compared whole, since a hash alone would
/// prove nothing. Nothing in them depends on a ranking. Where some may not lie below an
/// offset, they may not lie below any higher one either; where they may not though a
/// few are barred, they may not where more are. Takes 4 MiB at most, and the entries;
/// when that is full, older ones go.
template <class V>
class Memo {
 public:
  /// The hash of a state, whatever the order of `waiting`.
  static std::uint64_t hash(std::span<const std::int32_t> waiting, const V* least) {
    std::uint64_t sum = 0;
    for (const std::int32_t k : waiting) {
      sum += mixed(static_cast<std::uint64_t>(least[k]) << 20 ^
                   static_cast<std::uint64_t>(k));
    }
    return mixed(sum);
  }

  /// Whether these buffers are known to fail where none may lie below `last`.
  bool fails(std::uint64_t hash, std::span<const std::int32_t> waiting,
             const State<V>& state, V last) {
    const auto count = static_cast<std::int32_t>(waiting.size());
    const Entry* entry = bucket(hash);
    bool marked = false;
    for (std::size_t way = 0; way < kWays; ++way, ++entry) {
      if (entry->hash != hash || entry->count != count || entry->last > last) continue;
      if (!written(*entry)) continue;
      if (!marked) mark(waiting);
      marked = true;
      if (matches(*entry, state, entry->last == last)) return true;
    }
    return false;
  }

  void add_failure(std::uint64_t hash, std::span<const std::int32_t> waiting,
                   const State<V>& state, V last) {
    const auto count = static_cast<std::int32_t>(waiting.size());
    if (2 * waiting.size() > keys_.size()) return;
    const bool full = written_ + 2 * waiting.size() > keys_.size();
    if (full && keys_.size() < kMostKeys) grow();
    Entry* const first = bucket(hash);
    Entry* chosen = first;
    mark(waiting);
    for (Entry* entry = first; entry < first + kWays; ++entry) {
      // A weaker failure of the same state gives way.
      if (entry->hash == hash && entry->count == count && entry->last >= last &&
          written(*entry) && matches(*entry, state, false)) {
        chosen = entry;
        break;
      }
      if (!entry->count || entry->at < chosen->at) chosen = entry;
      if (!entry->count) break;
    }
    *chosen = {hash, written_, last, count};
    std::size_t at = written_ & (keys_.size() - 1);
    for (const std::int32_t k : waiting) {
      keys_[at] = static_cast<V>(2 * k + state.barred(k));
      keys_[at + 1] = state.least(k);
      at = (at + 2) & (keys_.size() - 1);
    }
    written_ += 2 * waiting.size();
  }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint64_t at = 0;  // in keys_, counted from the beginning of all time
    V last = 0;
    std::int32_t count = 0;  // 0: no entry
  };

  static constexpr std::size_t kBytes = std::size_t{1} << 22, kWays = 4;
  static constexpr std::size_t kFirstKeys = std::size_t{1} << 16;
  static constexpr std::size_t kMostKeys = kBytes / sizeof(V);
  static constexpr std::size_t kEntriesPerKey = 64;  // of keys_, on average: a guess

  static std::uint64_t mixed(std::uint64_t x) {
    x *= 0x9e3779b97f4a7c15;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93;
    return x ^ (x >> 29);
  }

  // Whether the entry is of as many buffers as are marked, and of the same, at the same
  // least offsets; with `bars`: and none was barred that is not now.
  bool matches(const Entry& entry, const State<V>& state, bool bars) const {
    std::size_t at = entry.at & (keys_.size() - 1);
    for (std::int32_t i = 0; i < entry.count; ++i) {
      const auto k = static_cast<std::int32_t>(keys_[at] >> 1);
      if (marks_[k] != calls_ || keys_[at + 1] != state.least(k)) return false;
      if (bars && (keys_[at] & 1) && !state.barred(k)) return false;
      at = (at + 2) & (keys_.size() - 1);
    }
    return true;
  }

  bool written(const Entry& entry) const { return written_ - entry.at <= keys_.size(); }

  void mark(std::span<const std::int32_t> waiting) {
    if (++calls_ == 0) {
      std::fill(marks_.begin(), marks_.end(), 0);
      calls_ = 1;
    }
    for (const std::int32_t k : waiting) {
      if (marks_.size() <= static_cast<std::size_t>(k)) marks_.resize(2 * k + 64, 0);
      marks_[k] = calls_;
    }
  }

  Entry* bucket(std::uint64_t hash) {
    return &entries_[hash & (entries_.size() - 1) & ~(kWays - 1)];
  }

  // Twice the room; only while the ring has not come round.
  void grow() {
    keys_.resize(2 * keys_.size());
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (!entry.count) continue;
      Entry* room = bucket(entry.hash);
      while (room->count) ++room;  // never more than were in one bucket before
      *room = entry;
    }
  }

  // In buckets of kWays; and a ring of (buffer x 2 + barred, offset) pairs.
  std::vector<Entry> entries_ = std::vector<Entry>(kFirstKeys / kEntriesPerKey);
  std::vector<V> keys_ = std::vector<V>(kFirstKeys);
  std::vector<std::uint32_t> marks_;  // by buffer: in which call it was named last
  std::uint32_t calls_ = 0;
  std::uint64_t written_ = 0;
};

/// Searches for a packing beneath a capacity, under one ranking.
///
/// A node is a state: some buffers are placed, and the next one goes at its least
/// offset, not below the last placement. Any packing can be pushed down to one that is
/// built this way: place its buffers from the bottom up, each at its least offset, and
/// repeat until nothing moves. This holds for any alignments, for fixed offsets (a
/// buffer whose least offset is its own) and on a periodic clock, since it only asks
/// which pairs overlap. Of those that begin at one offset any may come first: once all
/// packings are tried in which the first one lies there, it is barred from there. So
/// the ranking may change on the way, and does where what waits falls apart.
///
/// What is pruned, beside what `Bounds` refuses:
/// - dominance: nothing is placed where another buffer would fit wholly beneath;
/// - what was placed without a waiting buffer above it need not be put off;
/// - parts of time that no waiting buffer connects are solved apart;
/// - of buffers that are alike, the first lies lowest;
/// - a state that failed before fails again.
template <class V>
class ExactSearch {
 public:
  /// order: letters as in Ranking; M before them: where something must lie in some
  /// section next, only that is tried. Or R and a number: it begins again and again,
  /// with more time and another ranking, in which there is chance; what failed is
  /// remembered. The model must outlive the search.
  ExactSearch(const Model<V>& model, const std::string& order, V capacity)
      : model_(&model),
        capacity_(capacity),
        tightest_(order.starts_with('M')),
        state_(model),
        bounds_(model),
        ranking_(model, letters_of(order)),
        options_(model.sections) {
    if (!restarting(order)) return;
    if (order.size() < 2 || order.size() > 10 ||
        order.find_first_not_of("0123456789", 1) != order.npos) {
      throw std::invalid_argument("R needs a number of up to nine digits, a seed");
    }
    restarts_ = 0;
    seed_ = std::stoull(order.substr(1));
  }

  /// Goes on from where it stopped, for `nodes` more placements, or until the sign is
  /// up. kNever is a proof that nothing fits.
  Verdict run(std::int64_t nodes, const StopSign& stop) {
    if (!begun_) begin();
    const std::int64_t until = nodes_ + nodes;
    std::int64_t look = nodes_ + kStopEvery;
    while (at_ >= 0 && (nodes_ < until || outcome_ == Outcome::kSolved)) {
      if (nodes_ >= look) {
        if (stop.up()) return Verdict::kOpen;
        look = nodes_ + kStopEvery;
      }
      if (restarts_ >= 0 && nodes_ >= restart_at_ && outcome_ != Outcome::kSolved) {
        state_.undo(0);
        frames_.clear();
        pool_.clear();
        begin();
        continue;
      }
      step();
    }
    if (at_ >= 0) return Verdict::kOpen;
    return outcome_ == Outcome::kSolved ? Verdict::kFits : Verdict::kNever;
  }

  /// After kFits: an offset per buffer.
  std::span<const V> offsets() const {
    return {state_.least(), static_cast<std::size_t>(model_->n)};
  }
  std::int64_t nodes() const { return nodes_; }

 private:
  enum class Outcome : std::uint8_t { kGo, kFailed, kSolved };
  enum class Kind : std::uint8_t { kChoice, kParts };

  // A choice among candidates for the next placement; or parts of time, all of which
  // must be solved. Ranges are in pool_.
  struct Frame {
    Kind kind;
    bool hatless = false;        // the placed buffer has no waiting one above it
    std::int32_t parent;         // frame, or -1
    std::int32_t first, end;     // sections
    std::uint32_t items, lists;  // waiting buffers by rank; then candidates, or parts
    std::uint32_t next, stop;  // candidates, or parts, still to be tried
    std::int32_t placed = -1;
    std::size_t mark;  // of the state that was found
    std::size_t mark_now;  // of the state before a placement
    V last;  // nothing may follow below
    std::uint64_t hash = 0;
  };
  struct Range {
    std::int32_t first, end;
  };

  static constexpr std::int64_t kStopEvery = 64;  // nodes between looks at the sign

  static bool restarting(const std::string& order) { return order.starts_with('R'); }
  static std::string letters_of(const std::string& order) {
    return restarting(order) ? "" : order.substr(order.starts_with('M') ? 1 : 0);
  }

  void begin() {
    begun_ = true;
    for (std::int32_t k = 0; k < model_->n; ++k) pool_.push_back(k);
    if (restarts_ >= 0) rank_anew();
    ranking_.sort(pool_, state_);
    bool fits = true;
    for (std::int32_t k = 0; k < model_->n; ++k) {
      fits &= state_.top(k) <= capacity_ + model_->beyond[k];
    }
    outcome_ = fits ? open(-1, 0, {0, model_->sections}, 0, true) : Outcome::kFailed;
    at_ = outcome_ == Outcome::kGo ? 0 : -1;
  }

  // Another ranking, and how long to keep it: Luby's sequence, which is within a constant
  // factor of the best there is.
  void rank_anew() {
    constexpr std::string_view kOrders[] = {"TWA", "TZW", "CTA", "AWT", "OAT", "WAT"};
    constexpr std::int64_t kNodes = 1000;
    Random random(seed_ * 1'000'003 + static_cast<std::uint64_t>(++restarts_));
    const std::string order(kOrders[random.below(std::size(kOrders))]);
    tightest_ = random.below(8) != 0;
    rightmost_ = random.below(2) != 0;
    room_ = capacity_ / (V{8} << random.below(4));
    ranking_.change(order, random.bits(), 0.5 * random.uniform());
    std::int64_t k = restarts_;
    while ((k & (k + 1)) != 0) {
      k -= static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(k))) - 1;
    }
    restart_at_ = nodes_ + kNodes * (k + 1) / 2;
  }

  void step() {
    const Frame& frame = frames_[at_];
    if (frame.kind == Kind::kParts) {
      outcome_ == Outcome::kFailed ? give_up(at_) : next_part(at_);
    } else if (outcome_ == Outcome::kSolved) {
      at_ = frame.parent;
    } else {
      advance(at_);
    }
  }

  // Takes back the placement of a choice, if there is one, and makes the next.
  void advance(std::int32_t at) {
    truncate(at + 1);
    Frame& frame = frames_[at];
    if (frame.placed >= 0) {
      state_.undo(frame.mark_now);
      if (frame.hatless) frame.next = frame.stop;
      state_.bar(frame.placed);
      frame.mark_now = state_.mark();
    }
    if (frame.next == frame.stop) {
      state_.undo(frame.mark);
      memo_.add_failure(frame.hash, waiting(frame), state_, frame.last);
      return give_up(at);
    }
    const std::int32_t k = pool_[frame.next++];
    frame.placed = k;
    ++nodes_;
    const V last = state_.least(k);
    if (!state_.place(k, capacity_)) {
      frame.hatless = false;
      outcome_ = Outcome::kFailed;
      return;
    }
    const auto items = static_cast<std::uint32_t>(pool_.size());
    pool_.resize(items + frame.lists - frame.items - 1);
    std::remove_copy(pool_.begin() + frame.items, pool_.begin() + frame.lists,
                     pool_.begin() + items, k);
    frame.hatless = std::none_of(model_->neighbours[k].begin(),
                                 model_->neighbours[k].end(),
                                 [&](auto i) { return state_.waits(i); });
    settle(at, open(at, items, {frame.first, frame.end}, last, true));
  }

  void next_part(std::int32_t at) {
    const Frame& frame = frames_[at];
    if (frame.next == frame.stop) {
      outcome_ = Outcome::kSolved;
      at_ = frame.parent;
      return;
    }
    const Range range{pool_[frame.next], pool_[frame.next + 1]};
    frames_[at].next += 2;
    const auto items = static_cast<std::uint32_t>(pool_.size());
    for (auto i = frame.items; i < frame.lists; ++i) {
      const std::int32_t k = pool_[i];
      if (range.first <= model_->start[k] && model_->start[k] < range.end) {
        pool_.push_back(k);
      }
    }
    const V last = frame.last;
    ranking_.sort({pool_.begin() + items, pool_.end()}, state_);
    settle(at, open(at, items, range, last, false));
  }

  // A frame is done without success: its parent goes on.
  void give_up(std::int32_t at) {
    const std::int32_t parent = frames_[at].parent;
    truncate(at);
    outcome_ = Outcome::kFailed;
    at_ = parent;
  }

  void truncate(std::int32_t frames) {
    if (static_cast<std::size_t>(frames) < frames_.size()) {
      pool_.resize(frames_[frames].items);
      frames_.resize(frames);
    } else if (!frames_.empty() && frames > 0) {
      pool_.resize(frames_.back().stop);
    }
  }

  // A new node: the buffers in pool_ from `items` on wait. `whole`: it is not yet known
  // whether they fall apart.
  Outcome open(std::int32_t parent, std::uint32_t items, Range range, V last,
               bool whole) {
    const std::span<const std::int32_t> waiting{pool_.begin() + items, pool_.end()};
    if (waiting.empty()) return Outcome::kSolved;
    if (!bounds_.may_fit(state_, waiting, range.first, range.end, last, capacity_)) {
      return Outcome::kFailed;
    }
    if (whole && falls_apart(range)) return open_parts(parent, items, range, last);
    Frame frame{.kind = Kind::kChoice,
                .parent = parent,
                .first = range.first,
                .end = range.end,
                .items = items,
                .lists = static_cast<std::uint32_t>(pool_.size()),
                .next = static_cast<std::uint32_t>(pool_.size()),
                .stop = 0,
                .mark = state_.mark(),
                .mark_now = state_.mark(),
                .last = last};
    frame.hash = Memo<V>::hash(waiting, state_.least());
    if (memo_.fails(frame.hash, waiting, state_, last)) return Outcome::kFailed;
    list_candidates(items, range, last);
    frame.stop = static_cast<std::uint32_t>(pool_.size());
    frames_.push_back(frame);
    return Outcome::kGo;
  }

  // The parts in ascending number of waiting buffers, as ranges of sections.
  Outcome open_parts(std::int32_t parent, std::uint32_t items, Range range, V last) {
    const auto end = static_cast<std::uint32_t>(pool_.size());
    struct Part {
      Range range;
      std::int32_t count = 0;
    };
    std::vector<Part> parts;
    std::vector<std::int32_t> part_of(range.end - range.first);
    for (std::int32_t s = range.first; s < range.end; ++s) {
      if (s == range.first || state_.crossing(s) == 0) parts.push_back({{s, s}});
      parts.back().range.end = s + 1;
      part_of[s - range.first] = static_cast<std::int32_t>(parts.size()) - 1;
    }
    for (auto i = items; i < end; ++i) {
      ++parts[part_of[model_->start[pool_[i]] - range.first]].count;
    }
    std::erase_if(parts, [](const Part& part) { return part.count == 0; });
    if (parts.size() == 1) return open(parent, items, parts[0].range, last, false);
    std::stable_sort(parts.begin(), parts.end(),
                     [](auto& a, auto& b) { return a.count < b.count; });
    for (const Part& part : parts) {
      pool_.push_back(part.range.first);
      pool_.push_back(part.range.end);
    }
    frames_.push_back({.kind = Kind::kParts,
                       .parent = parent,
                       .first = range.first,
                       .end = range.end,
                       .items = items,
                       .lists = end,
                       .next = end,
                       .stop = static_cast<std::uint32_t>(pool_.size()),
                       .mark = state_.mark(),
                       .mark_now = state_.mark(),
                       .last = last});
    return Outcome::kGo;
  }

  bool falls_apart(Range range) const {
    if (model_->periodic && state_.wrapping()) return false;
    for (std::int32_t s = range.first + 1; s < range.end; ++s) {
      if (state_.crossing(s) == 0) return true;
    }
    return false;
  }

  // Appends to pool_ what may be placed next, in the order of (offset, rank).
  void list_candidates(std::size_t items, Range range, V last) {
    const std::size_t end = pool_.size();
    V roof = 2 * (capacity_ + model_->most_beyond) + 1;
    for (auto i = items; i < end; ++i) roof = std::min(roof, state_.top(pool_[i]));
    candidates_.clear();
    for (std::size_t i = items; i < end; ++i) {
      const std::int32_t k = pool_[i];
      if (state_.least(k) >= roof) continue;
      if (bounds_.offset(i - items) > state_.least(k)) continue;
      if (state_.least(k) < last || state_.barred(k)) continue;
      const std::int32_t twin = model_->twin[k];
      if (twin >= 0 && state_.waits(twin)) continue;
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
  void keep_tightest(Range range, V roof) {
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
      auto fewest = std::min(kHigher, static_cast<std::int32_t>(candidates_.size()));
      std::int32_t best = -1;
      for (std::int32_t s = range.first; s < range.end; ++s) {
        const V remaining = state_.remaining()[s];
        if (remaining == 0 || most - remaining >= limit) continue;
        if (options_[s] < fewest ||
            (rightmost_ && best >= 0 && options_[s] == fewest)) {
          fewest = options_[s];
          best = s;
        }
      }
      return best;
    };
    std::int32_t best = fewest_below(roof);
    const auto elsewhere = [&](const auto& candidate) {
      bool there = false;
      each_section(pool_[candidate.second],
                   [&](std::int32_t s) { there |= s == best; });
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

  void settle(std::int32_t parent, Outcome outcome) {
    outcome_ = outcome;
    const auto newest = static_cast<std::int32_t>(frames_.size()) - 1;
    at_ = outcome == Outcome::kGo ? newest : parent;
  }

  std::span<const std::int32_t> waiting(const Frame& frame) const {
    return {pool_.data() + frame.items, frame.lists - frame.items};
  }

  const Model<V>* model_;
  V capacity_;
  bool tightest_;  // only what must lie in some section next, in this ranking
  bool rightmost_ = false;  // of sections with as few candidates
  V room_ = 0;  // a section with less had better be filled next
  std::int64_t restarts_ = -1, restart_at_ = 0;  // -1: it never does
  std::uint64_t seed_ = 0;
  State<V> state_;
  Bounds<V> bounds_;
  Ranking<V> ranking_;
  Memo<V> memo_;
  std::vector<Frame> frames_;
  std::vector<std::int32_t> pool_;
  std::vector<std::pair<V, std::int32_t>> candidates_;  // offset, place in pool_
  std::vector<std::int32_t> options_;  // per section
  std::int32_t at_ = -1;
  Outcome outcome_ = Outcome::kGo;
  bool begun_ = false;
  std::int64_t nodes_ = 0;
};

}  // namespace memplan::dsa
