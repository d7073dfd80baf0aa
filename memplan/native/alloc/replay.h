// Serves a program's CPU tensors in an arena, as the server of requests says, and looks
// after the arena's pages.
//
// Wherever a plan, or the lack of one, may lead blocks to, the arena holds no more pages
// than pay: together with the tensors outside it, about as many bytes as were ever alive
// at once, which any allocator must hold. What is too much goes back to the system, dead
// pages first that were not used for longest.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/arena.h"
#include "replay/server.h"

namespace memplan {

class Replay {
  static constexpr double kUnknown = -1.0;  // in `touched_`
  // Steps whose counts are kept for whoever asks; those after them are not.
  static constexpr std::size_t kMostSteps = 4096;
  // Blocks from this size on are worth a look at their pages; fewer bytes of pages are
  // not worth the search for them.
  static constexpr std::uint64_t kLarge = 1 << 20;
  // One part in so many, of the most bytes that were ever alive, may be resident beyond
  // them; and so many are returned beyond what is needed, not to search at every request.
  static constexpr std::uint64_t kSlackPart = 16;
  static constexpr std::uint64_t kAtOncePart = 64;
  // Arenas from this size on are asked huge pages for.
  static constexpr std::uint64_t kWorthHuge = 32 << 20;
  // Steps at most after which pages are cold.
  static constexpr std::uint32_t kMostCold = 4096;
  // Sparse blocks return their pages in one step of so many: what a longer step touched
  // does not stay for good, and most steps find their pages in place.
  static constexpr std::size_t kSparseSteps = 4;

  template <typename Function>
  auto locked(Function&& read) {
    std::lock_guard lock(mutex_);
    return read();
  }

 public:
  // Reserves `reserve` bytes of address space, of which the table's `arena_bytes` are
  // used; a later table may use more. Pages that no block used in the last `cold`
  // steps go back to the system; 0 keeps them. Where such pages come back, as in rounds of
  // more steps than that, it is twice as many steps from then on.
  Replay(Table table, std::uint64_t reserve, std::uint32_t cold)
      : server_(std::move(table), reserve, kAlignment),
        arena_(reserve),
        cold_(cold),
        touched_(server_.table().requests.size(), kUnknown) {
    allow_huge();
  }

  // An address in the arena, or null: then the default allocator must serve.
  // `turned`, if given, becomes true where the request showed that a step has begun.
  void* allocate(std::uint64_t bytes, bool* turned = nullptr) {
    std::lock_guard lock(mutex_);
    if (bytes > largest_request()) largest_.store(bytes, std::memory_order_relaxed);
    if (aside()) {
      server_.pass(bytes);
      return nullptr;
    }
    if (server_.overdue()) {
      overdue_ = true;
      go_aside();
      server_.pass(bytes);
      return nullptr;
    }
    if (server_.turns(bytes)) {
      end_step();
      if (turned != nullptr) *turned = true;
    }
    const auto [offset, entry] = server_.serve(bytes);
    const std::uint64_t rounded = round_up(bytes, kAlignment);
    if (offset < 0) {
      outside_.fetch_add(static_cast<std::int64_t>(rounded), std::memory_order_relaxed);
      keep_within();
      return nullptr;
    }
    const auto begin = static_cast<std::uint64_t>(offset);
    arena_.note_use(begin, rounded);
    if (entry != kNoMatch) follow_pages(entry, begin, bytes);
    keep_within();
    return arena_.address(begin);
  }
  // The rounded size of the block that was there.
  std::uint64_t release(void* pointer) {
    std::lock_guard lock(mutex_);
    const std::uint64_t offset = arena_.offset_of(pointer);
    const std::uint64_t bytes = server_.ranges().give_back(offset);
    if (bytes != 0) arena_.note_use(offset, bytes);
    if (bytes < kLarge) return bytes;
    bool goes = aside();
    if (const auto block = followed_.find(offset); block != followed_.end()) {
      const std::size_t entry = block->second;
      if (touched_[entry] == kUnknown && !server_.table().requests[entry].sparse) {
        touched_[entry] = arena_.resident_part(offset, bytes);
      }
      goes = goes ||
             (server_.table().requests[entry].sparse && steps_ % kSparseSteps == 0);
      followed_.erase(block);
    }
    if (goes) arena_.return_pages(offset, bytes);
    return bytes;
  }
  // One of `bytes`, rounded, that is kept account of though `allocate` stood aside.
  void outside_born(std::uint64_t bytes) {
    outside_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  // A block of `bytes` that lies outside the arena, since `allocate` said so, was freed.
  void outside_died(std::uint64_t bytes) {
    outside_.fetch_sub(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  // The program begins its next step. True at the first repeated one, and where another
  // table was adopted: what the C library keeps of the time before is of no use then.
  bool next_step() {
    std::lock_guard lock(mutex_);
    return end_step();
  }
  // While this lasts, it is noted which pages large blocks touch, once for each of the
  // plan's, some of them in each step: their pages are then new.
  void unsettle(bool unsettled) {
    std::lock_guard lock(mutex_);
    unsettled_ = unsettled;
  }
  // From now on leaves all requests to the default allocator, and returns the pages of
  // blocks as they die, until another table is adopted; or serves them again.
  void stand_aside(bool aside) {
    std::lock_guard lock(mutex_);
    overdue_ = false;
    if (aside) {
      go_aside();
    } else {
      aside_.store(false, std::memory_order_relaxed);
    }
  }
  bool aside() const { return aside_.load(std::memory_order_relaxed); }
  // See Server.
  void place_departures(bool placed) {
    locked([&] { server_.place_departures(placed); });
  }
  // So many bytes more than needed may stay resident where that saves page faults.
  void allow(std::uint64_t slack) {
    locked([&] { slack_ = slack; });
  }
  // See Server.
  void adopt(Table table) {
    locked([&] { server_.adopt(std::move(table)); });
  }

  bool contains(const void* pointer) const { return arena_.contains(pointer); }
  std::uintptr_t base() const {
    return reinterpret_cast<std::uintptr_t>(arena_.address(0));
  }
  std::uint64_t reserved_bytes() const { return arena_.size(); }
  std::uint64_t arena_bytes() {
    return locked([&] { return server_.table().arena_bytes; });
  }
  // Whether the warm-up is over, and the plan is of use as far as is known.
  bool pays() {
    return locked(
        [&] { return server_.looped() && server_.places_departures() && !aside(); });
  }
  std::uint64_t top() {
    return locked([&] { return arena_.top(); });
  }
  std::uint64_t returned_bytes() {
    return locked([&] { return returned_; });
  }
  // See Arena.
  std::uint64_t resident_bytes() {
    return locked([&] { return arena_.resident(); });
  }
  std::uint64_t refaulted_bytes() {
    return locked([&] { return arena_.refaulted(); });
  }
  // Bytes of the largest request so far, served here or not.
  std::uint64_t largest_request() const {
    return largest_.load(std::memory_order_relaxed);
  }
  // The most bytes of tensors that were ever alive, in the arena and outside it, of
  // those that were asked for here.
  std::uint64_t most_live() {
    return locked([&] { return most_live_; });
  }
  std::size_t live_blocks() {
    return locked([&] { return server_.ranges().used().size(); });
  }
  std::uint64_t live_bytes() {
    return locked([&] { return server_.ranges().bytes_in_use(); });
  }
  PhaseCounts counts() {
    return locked([&] { return server_.counts(); });
  }
  // The repeated steps that ended since the last call.
  std::vector<StepEnd> take_steps() {
    return locked([&] { return std::exchange(ended_, {}); });
  }
  // Per request of the table, the most bytes asked for in its place; of elastic steps.
  std::vector<std::uint64_t> largest() {
    return locked([&] { return server_.largest(); });
  }
  // Per request of the table, the part of its pages that the program touched before it
  // freed the block; -1 where that is not known: of small blocks, those alive, and those
  // that came while the plan was settled.
  std::vector<double> touched() {
    return locked([&] { return touched_; });
  }
  // Around a fork: the child's copy is then of no other thread's half-done work, and
  // under no other thread's lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  // Blocks of elastic steps, and sparse ones, are looked at page by page.
  void allow_huge() {
    const Table& table = server_.table();
    const bool elastic = std::any_of(table.steps.begin(), table.steps.end(),
                                     [](const Step& step) { return step.elastic; });
    const bool sparse =
        std::any_of(table.requests.begin(), table.requests.end(),
                    [](const Request& request) { return request.sparse; });
    if (!elastic && !sparse && table.arena_bytes >= kWorthHuge) {
      arena_.allow_huge(table.arena_bytes);
    }
  }
  bool end_step() {
    const StepEnd end = server_.next_step();
    if (end.hot && ended_.size() < kMostSteps) ended_.push_back(end);
    ++steps_;
    in_vain_ = looked_at_ = 0;
    if (end.adopted) {
      touched_.assign(server_.table().requests.size(), kUnknown);
      followed_.clear();  // of the table before
      adopted_ = steps_;
    }
    if (end.adopted || std::exchange(overdue_, false)) {
      aside_.store(false, std::memory_order_relaxed);
    }
    const Ranges::Map& used = server_.ranges().used();
    // What the table before left behind, or all that nobody needs any more.
    if (end.adopted || aside()) returned_ += arena_.return_dead(used, arena_.size());
    if (end.adopted) allow_huge();
    if (cold_ != 0) return_cold();
    return end.adopted || (server_.looped() && !end.hot);
  }
  // While unsettled, a large block's pages are made new the first time that it is made in
  // its place: those that are resident when it is freed, it has touched. Only a few in each
  // step: all of a step's blocks are many times the bytes that are alive at once.
  void follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes) {
    if (bytes < kLarge || !server_.looped()) return;
    const std::uint64_t at_most = std::max(most_live_ / kAtOncePart, kLarge);
    const bool unknown = unsettled_ && touched_[entry] == kUnknown &&
                         (looked_at_ == 0 || looked_at_ + bytes <= at_most);
    if (unknown) {
      looked_at_ += bytes;
      arena_.return_pages(offset, bytes, true);
      arena_.note_use(offset, bytes);
    }
    if (unknown || server_.table().requests[entry].sparse) followed_[offset] = entry;
  }
  std::uint64_t outside() const {
    return static_cast<std::uint64_t>(
        std::max<std::int64_t>(outside_.load(std::memory_order_relaxed), 0));
  }
  void go_aside() {
    aside_.store(true, std::memory_order_relaxed);
    followed_.clear();
    returned_ += arena_.return_dead(server_.ranges().used(), arena_.size());
  }
  // How many bytes may be resident in the arena, and alive outside it.
  std::uint64_t allowance() const {
    const std::uint64_t most =
        most_live_ + std::max(most_live_ / kSlackPart, slack_) + kLarge;
    if (!server_.in_order()) return most;
    // Where the program does as planned, a plan is taken at its word, until all of it came
    // by once: what is resident then is about what will be needed.
    const std::uint64_t planned = outside() + server_.table().arena_bytes;
    const bool first_pass = steps_ <= adopted_ + server_.table().loop_end;
    return std::max(most, first_pass ? planned : std::min(planned, most_live_ / 4 * 5));
  }
  void keep_within() {
    const std::uint64_t in_use = server_.ranges().bytes_in_use(), beside = outside();
    most_live_ = std::max(most_live_, in_use + beside);
    const std::uint64_t held = arena_.resident() + beside, most = allowance();
    if (held <= most || held <= in_vain_ || arena_.resident() < in_use + kLarge) return;
    const std::uint64_t more = std::max(most_live_ / kAtOncePart, kLarge);
    returned_ += arena_.return_dead(server_.ranges().used(), held - most + more);
    const std::uint64_t now = arena_.resident() + beside;
    in_vain_ = now > most ? now + kLarge : 0;
  }
  void return_cold() {
    const std::uint64_t back = arena_.refaulted() - refaulted_before_;
    if (cooled_ > kLarge && back > cooled_ / 2 && cold_ < kMostCold) {
      cold_ *= 2;
      cooled_ = 0;
    }
    if (cooled_ == 0) refaulted_before_ = arena_.refaulted();
    const std::uint64_t cooled = arena_.release_cold(server_.ranges().used(), cold_);
    cooled_ += cooled;
    returned_ += cooled;
  }

  std::mutex mutex_;
  Server server_;
  Arena arena_;
  std::uint32_t cold_;
  std::uint64_t cooled_ = 0;  // bytes that went back as cold, with this `cold_`
  std::uint64_t refaulted_before_ = 0;  // before any of them did
  std::uint64_t steps_ = 0;  // ended so far
  std::uint64_t adopted_ = 0;  // of them, before the table was adopted
  bool unsettled_ = false;
  std::atomic<bool> aside_ = false;
  bool overdue_ = false;  // aside, but only to the end of this step of the warm-up
  std::atomic<std::int64_t> outside_ = 0;  // live bytes
  std::atomic<std::uint64_t> largest_ = 0;
  std::uint64_t most_live_ = 0;
  std::uint64_t slack_ = 0;
  std::uint64_t looked_at_ = 0;  // bytes whose pages were made new, in this step
  std::uint64_t in_vain_ =
      0;  // below so many resident bytes there is nothing to return
  std::vector<double> touched_;
  // Large blocks whose pages are looked at, or returned, when they are freed: offset ->
  // request.
  std::unordered_map<std::uint64_t, std::size_t> followed_;
  std::vector<StepEnd> ended_;
  std::uint64_t returned_ = 0;
};

}  // namespace memplan
