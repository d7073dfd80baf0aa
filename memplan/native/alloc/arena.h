// One reserved range of addresses, and its pages: which of them are resident, by the
// blocks that were placed there. Which of its bytes are in use, the server of requests
// knows.
//
// Not thread-safe: the owner holds a lock. Offsets are in bytes from the start of the
// arena.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <new>
#include <tuple>
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
  explicit Arena(std::uint64_t bytes) : size_(round_up(bytes, kAlignment)) {
    // More than any address space; and what follows must not wrap around.
    if (bytes > kMostBytes) throw std::bad_alloc();
    const std::uint64_t mapped = round_up(size_, kHugePage) + kHugePage;
    void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uint64_t>(start);
    base_ = reinterpret_cast<char*>(round_up(address, kHugePage));
    last_use_.reset(static_cast<std::uint32_t*>(
        std::calloc(size_ / kGranule + 1, sizeof(std::uint32_t))));
    if (last_use_ == nullptr) {
      munmap(start, mapped);
      throw std::bad_alloc();
    }
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // From now on, where nothing was touched yet in [0, bytes), huge pages are asked for
  // beneath blocks that cover them: they fault less, and are found faster. What counts as
  // resident is the same with them, since their blocks count as a whole. Any part of one
  // that goes back to the system leaves small pages there.
  void allow_huge(std::uint64_t bytes) {
    const std::uint64_t count = std::min(bytes, size_) / kHugePage;
    if (huge_.size() < count) huge_.resize(count, Huge::kNo);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint32_t* first = &last_use_[i * kInHuge];
      const bool untouched = std::all_of(
          first, first + kInHuge, [](std::uint32_t use) { return use <= kReturned; });
      if (!untouched || huge_[i] == Huge::kAllowed) continue;
      huge_[i] = Huge::kAllowed;
      ++still_allowed_;
    }
  }
  // A block was placed at `offset`, or freed there; `bytes` is rounded. Its pages count
  // as resident from then on.
  void note_use(std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t end = offset + bytes;
    top_ = std::max(top_, end);
    if (clock_ == std::numeric_limits<std::uint32_t>::max()) start_clock_anew();
    ++clock_;
    if (still_allowed_ > 0) ask_huge(offset, end);
    const std::uint64_t last = (end - 1) / kGranule;
    for (std::uint64_t i = offset / kGranule; i <= last; ++i) {
      std::uint32_t& use = last_use_[i];
      if (use <= kReturned) {
        resident_ += kGranule;
        if (use == kReturned) refaulted_ += kGranule;
      }
      use = clock_;
    }
  }
  // Returns the pages that lie wholly in [offset, offset + bytes) to the system. Those
  // that are to be `fresh` do not count as touched again when they are.
  void return_pages(std::uint64_t offset, std::uint64_t bytes, bool fresh = false) {
    const std::uint64_t begin = round_up(offset, kPage);
    const std::uint64_t end = (offset + bytes) / kPage * kPage;
    if (begin >= end || madvise(base_ + begin, end - begin, MADV_DONTNEED) != 0) return;
    const std::uint64_t first = round_up(begin, kGranule) / kGranule,
                        last = end / kGranule;
    if (first < last) forget(first, last, fresh ? 0 : kReturned);
  }
  // Returns granules of which nothing is `used`, those unused for longest first, until
  // `bytes` went or no more are there; how many went.
  std::uint64_t return_dead(const Ranges::Map& used, std::uint64_t bytes) {
    std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> runs;
    dead_runs(used, [&](std::uint64_t first, std::uint64_t last) {
      runs.emplace_back(last_use_[first], first, last);
    });
    std::sort(runs.begin(), runs.end());
    std::uint64_t returned = 0;
    for (auto [use, first, last] : runs) {
      if (returned >= bytes) break;
      const std::uint64_t most = round_up(bytes - returned, kGranule) / kGranule;
      first = std::max(first, last - std::min(last, most));
      const std::uint64_t count = (last - first) * kGranule;
      if (give_back(first, last)) returned += count;
    }
    return returned;
  }
  // Of those pages that lie wholly in [offset, offset + bytes), how many are resident,
  // as a part of all; 1 where there are none, or it cannot be told. Granules found not
  // to be do not count as resident any more.
  double resident_part(std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t begin = round_up(offset, kPage);
    const std::uint64_t end = (offset + bytes) / kPage * kPage;
    if (begin >= end) return 1.0;
    std::vector<unsigned char> pages((end - begin) / kPage);
    if (mincore(base_ + begin, end - begin, pages.data()) != 0) return 1.0;
    std::uint64_t resident = 0;
    const std::uint64_t a_granule = std::max<std::uint64_t>(kGranule / kPage, 1);
    const std::uint64_t before = (round_up(begin, kGranule) - begin) / kPage;
    std::uint64_t of_granule = 0;
    for (std::uint64_t i = 0; i < pages.size(); ++i) {
      const bool here = (pages[i] & 1) != 0;
      resident += here;
      if (i < before) continue;
      const std::uint64_t place = (i - before) % a_granule;
      of_granule = (place == 0 ? 0 : of_granule) + here;
      if (place + 1 == a_granule && of_granule == 0) {
        const std::uint64_t granule = (begin + i * kPage) / kGranule;
        forget(granule, granule + 1);
      }
    }
    return static_cast<double>(resident) / static_cast<double>(pages.size());
  }

  // Returns to the system the granules that no block has used in the last `age` steps,
  // and of which nothing is `used` now. Called once at each step boundary; returns how
  // many bytes went.
  std::uint64_t release_cold(const Ranges::Map& used, std::uint32_t age) {
    steps_.push_back(clock_);
    if (steps_.size() <= age) return 0;
    const std::uint32_t oldest = steps_.front();
    steps_.pop_front();
    std::uint64_t returned = 0;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> cold;
    dead_runs(used, [&](std::uint64_t first, std::uint64_t last) {
      if (last_use_[first] <= oldest) cold.emplace_back(first, last);
    });
    for (const auto& [first, last] : cold) {
      const std::uint64_t count = (last - first) * kGranule;
      if (give_back(first, last)) returned += count;
    }
    return returned;
  }

  bool contains(const void* pointer) const {
    return static_cast<const char*>(pointer) - base_ <
               static_cast<std::ptrdiff_t>(size_) &&
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
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;
  static inline const auto kPage = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  // Granules [first, last) are the system's again.
  void forget(std::uint64_t first, std::uint64_t last, std::uint32_t as = kReturned) {
    const std::uint64_t above =
        std::min<std::uint64_t>((last - 1) / kInHuge + 1, huge_.size());
    for (std::uint64_t i = first / kInHuge; i < above; ++i) {
      if (huge_[i] != Huge::kAsked) continue;
      huge_[i] = Huge::kNo;
      // A small block there is not to have all of it come back.
      madvise(base_ + i * kHugePage, kHugePage, MADV_NOHUGEPAGE);
    }
    for (std::uint64_t i = first; i < last; ++i) {
      if (last_use_[i] <= kReturned) continue;
      last_use_[i] = as;
      resident_ -= kGranule;
    }
  }
  // A block lies in [offset, end), the first one there where huge pages are allowed.
  void ask_huge(std::uint64_t offset, std::uint64_t end) {
    const std::uint64_t last =
        std::min<std::uint64_t>((end - 1) / kHugePage + 1, huge_.size());
    for (std::uint64_t i = offset / kHugePage; i < last; ++i) {
      if (huge_[i] != Huge::kAllowed) continue;
      --still_allowed_;
      const bool covered = i * kHugePage >= offset && (i + 1) * kHugePage <= end;
      huge_[i] = covered ? Huge::kAsked : Huge::kNo;
      if (covered) madvise(base_ + i * kHugePage, kHugePage, MADV_HUGEPAGE);
    }
  }
  // Granules [first, last) go back to the system; false if it does not take them.
  bool give_back(std::uint64_t first, std::uint64_t last) {
    const std::uint64_t bytes = (last - first) * kGranule;
    if (madvise(base_ + first * kGranule, bytes, MADV_DONTNEED) != 0) return false;
    forget(first, last);
    return true;
  }
  void start_clock_anew() {
    for (std::uint64_t i = 0; i * kGranule < top_; ++i) {
      last_use_[i] = std::min(last_use_[i], kReturned + 1);
    }
    clock_ = kReturned + 1;
    steps_.clear();
  }
  // Calls `visit(first, last)` for runs of granules that are resident, of which nothing
  // is `used`, and that were last used at one time.
  template <typename Visit>
  void dead_runs(const Ranges::Map& used, Visit&& visit) const {
    const auto visit_between = [&](std::uint64_t begin, std::uint64_t end) {
      const std::uint64_t last = end / kGranule;
      for (std::uint64_t i = round_up(begin, kGranule) / kGranule; i < last;) {
        const std::uint64_t first = i;
        while (i < last && last_use_[i] == last_use_[first]) ++i;
        if (last_use_[first] > kReturned) visit(first, i);
      }
    };
    std::uint64_t dead = 0;
    for (const auto& [start, end] : used) {
      if (start > dead) visit_between(dead, start);
      dead = end;
    }
    // The last granule may reach beyond all blocks, and even the arena's end.
    if (dead < top_) visit_between(dead, round_up(top_, kGranule));
  }

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
