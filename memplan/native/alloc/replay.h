// Serves a program's CPU tensors in an arena, as the server of requests says, and looks
// after the arena's pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/arena.h"
#include "replay/serve.h"

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
  // steps go back to the system; 0 keeps them.
  Replay(Table table, std::uint64_t reserve, std::uint32_t cold);

  // An address in the arena, or null: then the default allocator must serve.
  // `turned`, if given, becomes true where the request showed that a step has begun.
  void* allocate(std::uint64_t bytes, bool* turned = nullptr);
  // The rounded size of the block that was there.
  std::uint64_t release(void* pointer);
  // The program begins its next step. True at the first repeated one.
  bool next_step();
  // While this lasts, large blocks return their pages when they are freed, and it is
  // noted which they touched: slower, but no more is resident than what lives. For plans
  // that may yet change.
  void unsettle(bool unsettled);
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
  std::uint64_t top() { return locked([&] { return arena_.top(); }); }
  std::uint64_t returned_bytes() { return locked([&] { return returned_; }); }
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
    return locked([&] { return server_.matcher().largest(); });
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
  bool end_step();
  void follow_pages(std::size_t entry, std::uint64_t offset, std::uint64_t bytes);

  std::mutex mutex_;
  Server server_;
  Arena arena_;
  const std::uint32_t cold_;
  std::uint64_t steps_ = 0;  // ended so far
  bool unsettled_ = false;
  bool returning_ = false;  // this step returns its pages as it frees them
  std::vector<double> touched_;
  // Large blocks whose pages are looked at, or returned, when they are freed: offset ->
  // request.
  std::unordered_map<std::uint64_t, std::size_t> followed_;
  std::vector<StepEnd> ended_;
  std::uint64_t returned_ = 0;
};

}  // namespace memplan
