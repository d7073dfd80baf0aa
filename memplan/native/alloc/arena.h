// One reserved range of addresses, and its pages: which of them are resident, by the
// blocks that were placed there. Which of its bytes are in use, the server of requests
// knows.
//
// Not thread-safe: the owner holds a lock. Offsets are in bytes from the start of the
// arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "replay/ranges.h"

namespace memplan {

constexpr std::uint64_t kAlignment = 64;  // of blocks, as torch wants them
constexpr std::uint64_t kHugePage = 2 << 20;
// Pages are kept account of, and returned, in granules of so many bytes.
constexpr std::uint64_t kGranule = 16 << 10;

class Arena {
 public:
  // Reserves `bytes` of address space, aligned to 2 MiB; no page is touched yet.
  // Throws std::bad_alloc if the system refuses.
  explicit Arena(std::uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // From now on, where nothing was touched yet in [0, bytes), huge pages are asked for
  // beneath blocks that cover them: they fault less, and are found faster. What counts as
  // resident is the same with them, since their blocks count as a whole. Any part of one
  // that goes back to the system leaves small pages there.
  void allow_huge(std::uint64_t bytes);
  // A block was placed at `offset`, or freed there; `bytes` is rounded. Its pages count
  // as resident from then on.
  void note_use(std::uint64_t offset, std::uint64_t bytes);
  // Returns the pages that lie wholly in [offset, offset + bytes) to the system. Those
  // that are to be `fresh` do not count as touched again when they are.
  void return_pages(std::uint64_t offset, std::uint64_t bytes, bool fresh = false);
  // Returns granules of which nothing is `used`, those unused for longest first, until
  // `bytes` went or no more are there; how many went.
  std::uint64_t return_dead(const Ranges::Map& used, std::uint64_t bytes);
  // Of those pages that lie wholly in [offset, offset + bytes), how many are resident,
  // as a part of all; 1 where there are none, or it cannot be told. Granules found not
  // to be do not count as resident any more.
  double resident_part(std::uint64_t offset, std::uint64_t bytes);

  // Returns to the system the granules that no block has used in the last `age` steps,
  // and of which nothing is `used` now. Called once at each step boundary; returns how
  // many bytes went.
  std::uint64_t release_cold(const Ranges::Map& used, std::uint32_t age);

  bool contains(const void* pointer) const {
    return static_cast<const char*>(pointer) - base_ < static_cast<std::ptrdiff_t>(size_) &&
           pointer >= base_;
  }
  void* address(std::uint64_t offset) const { return base_ + offset; }
  std::uint64_t offset_of(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const char*>(pointer) - base_);
  }
  std::uint64_t size() const { return size_; }
  // One past the highest byte that any block ever had.
  std::uint64_t top() const { return top_; }
  // Bytes of the granules that blocks have had, and that were not returned since: as
  // many as are resident, or more where blocks were touched in part.
  std::uint64_t resident() const { return resident_; }
  // Bytes of granules that were used again after they had been returned, so far.
  std::uint64_t refaulted() const { return refaulted_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  void forget(std::uint64_t first, std::uint64_t last, std::uint32_t as = kReturned);
  // A block lies in [offset, end), the first one there where huge pages are allowed.
  void ask_huge(std::uint64_t offset, std::uint64_t end);
  // Granules [first, last) go back to the system; false if it does not take them.
  bool give_back(std::uint64_t first, std::uint64_t last);
  void start_clock_anew();
  // Calls `visit(first, last)` for runs of granules that are resident, of which nothing
  // is `used`, and that were last used at one time.
  template <typename Visit>
  void dead_runs(const Ranges::Map& used, Visit&& visit) const;

  enum class Huge : std::uint8_t { kNo, kAllowed, kAsked };

  static constexpr std::uint32_t kReturned = 1;  // in `last_use_`
  static constexpr std::uint64_t kInHuge = kHugePage / kGranule;
  char* base_;
  std::uint64_t size_;
  std::uint64_t top_ = 0;
  std::uint64_t resident_ = 0;
  std::uint64_t refaulted_ = 0;
  std::uint32_t clock_ = kReturned + 1;  // advances with each block placed or freed
  std::deque<std::uint32_t> steps_;      // the clock at the latest step boundaries
  // Per granule: the clock when a block was last placed or freed there; kReturned for
  // those that the system has again, 0 for those never used. Of the whole range, but
  // resident itself only as far as the arena was used.
  std::unique_ptr<std::uint32_t[], Free> last_use_;
  std::vector<Huge> huge_;  // per huge page, as far as they were ever allowed
  std::uint64_t still_allowed_ = 0;  // how many of them are kAllowed
};

}  // namespace memplan
