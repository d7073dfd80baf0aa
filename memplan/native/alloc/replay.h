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
  Replay(Table table, std::uint64_t reserve, std::uint32_t cold);

  // An address in the arena, or null: then the default allocator must serve.
  // `turned`, if given, becomes true where the request showed that a step has begun.
  void* allocate(std::uint64_t bytes, bool* turned = nullptr);
  // The rounded size of the block that was there.
  std::uint64_t release(void* pointer);
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
  bool next_step();
  // While this lasts, it is noted which pages large blocks touch, once for each of the
  // plan's, some of them in each step: their pages are then new.
  void unsettle(bool unsettled);
  // From now on leaves all requests to the default allocator, and returns the pages of
  // blocks as they die, until another table is adopted; or serves them again.
  void stand_aside(bool aside);
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
    return locked([&] {
      return server_.looped() && server_.places_departures() && !aside();
    });
  }
  std::uint64_t top() { return locked([&] { return arena_.top(); }); }
  std::uint64_t returned_bytes() { return locked([&] { return returned_; }); }
  // See Arena.
  std::uint64_t resident_bytes() { return locked([&] { return arena_.resident(); }); }
  std::uint64_t refaulted_bytes() { return locked([&] { return arena_.refaulted(); }); }
  // Bytes of the largest request so far, served here or not.
  std::uint64_t largest_request() const {
    return largest_.load(std::memory_order_relaxed);
  }
  // The most bytes of tensors that were ever alive, in the arena and outside it, of
  // those that were asked for here.
  std::uint64_t most_live() { return locked([&] { return most_live_; }); }
  std::size_t live_blocks() {
    return locked([&] { return server_.ranges().used().size(); });
  }
  std::uint64_t live_bytes() {
    return locked([&] { return server_.ranges().bytes_in_use(); });
  }
  PhaseCounts counts() { return locked([&] { return server_.counts(); }); }
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
  std::vector<double> touched() { return locked([&] { return touched_; }); }
  // Around a fork: the child's copy is then of no other thread's half-done work, and
  // under no other thread's lock.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  void allow_huge();
  bool end_step();
  void follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes);
  std::uint64_t outside() const {
    return static_cast<std::uint64_t>(
        std::max<std::int64_t>(outside_.load(std::memory_order_relaxed), 0));
  }
  void go_aside();
  std::uint64_t allowance() const;
  void keep_within();
  void return_cold();

  std::mutex mutex_;
  Server server_;
  Arena arena_;
  std::uint32_t cold_;
  std::uint64_t cooled_ = 0;  // bytes that went back as cold, with this `cold_`
  std::uint64_t refaulted_before_ = 0;  // before any of them did
  std::uint64_t steps_ = 0;    // ended so far
  std::uint64_t adopted_ = 0;  // of them, before the table was adopted
  bool unsettled_ = false;
  std::atomic<bool> aside_ = false;
  bool overdue_ = false;  // aside, but only to the end of this step of the warm-up
  std::atomic<std::int64_t> outside_ = 0;  // live bytes
  std::atomic<std::uint64_t> largest_ = 0;
  std::uint64_t most_live_ = 0;
  std::uint64_t slack_ = 0;
  std::uint64_t looked_at_ = 0;  // bytes whose pages were made new, in this step
  std::uint64_t in_vain_ = 0;  // below so many resident bytes there is nothing to return
  std::vector<double> touched_;
  // Large blocks whose pages are looked at, or returned, when they are freed: offset ->
  // request.
  std::unordered_map<std::uint64_t, std::size_t> followed_;
  std::vector<StepEnd> ended_;
  std::uint64_t returned_ = 0;
};

}  // namespace memplan
