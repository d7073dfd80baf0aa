#include "alloc/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>

namespace memplan {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;
const auto kPage = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));

}  // namespace

Arena::Arena(std::uint64_t bytes) : size_(round_up(bytes, kAlignment)) {
  // More than any address space; and what follows must not wrap around.
  if (bytes > kMostBytes) throw std::bad_alloc();
  const std::uint64_t mapped = round_up(size_, kHugePage) + kHugePage;
  void* start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uint64_t>(start);
  base_ = reinterpret_cast<char*>(round_up(address, kHugePage));
  last_use_.resize(round_up(size_, kHugePage) / kHugePage);
}

void Arena::note_use(std::uint64_t begin, std::uint64_t end) {
  top_ = std::max(top_, end);
  if (begin == end) return;
  std::fill(last_use_.begin() + static_cast<std::ptrdiff_t>(begin / kHugePage),
            last_use_.begin() + static_cast<std::ptrdiff_t>((end - 1) / kHugePage + 1), now_);
}

bool Arena::take(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > size_ || offset > size_) return false;
  const std::uint64_t end = offset + round_up(bytes, kAlignment);
  if (end > size_) return false;
  const auto above = live_.lower_bound(offset);
  if (above != live_.end() && above->first < end) return false;
  if (above != live_.begin() && std::prev(above)->second > offset) return false;
  live_.emplace_hint(above, offset, end);
  live_bytes_ += end - offset;
  note_use(offset, end);
  return true;
}

std::int64_t Arena::take_anywhere(std::uint64_t bytes, std::uint64_t limit) {
  if (bytes > size_) return -1;
  const std::uint64_t want = round_up(bytes, kAlignment);
  std::uint64_t best_gap = std::numeric_limits<std::uint64_t>::max();
  std::int64_t best = -1;
  std::uint64_t top = 0;
  const auto consider = [&](std::uint64_t until) {
    if (until < top) return;
    const std::uint64_t gap = until - top;
    if (gap >= want && gap < best_gap) {
      best_gap = gap;
      best = static_cast<std::int64_t>(top);
    }
  };
  limit = std::min(limit, size_);
  for (const auto& [start, end] : live_) {
    consider(std::min(start, limit));
    top = end;
  }
  consider(limit);
  if (best >= 0) {
    const auto begin = static_cast<std::uint64_t>(best);
    live_.emplace(begin, begin + want);
    live_bytes_ += want;
    note_use(begin, begin + want);
  }
  return best;
}

std::uint64_t Arena::give_back(std::uint64_t offset) {
  const auto block = live_.find(offset);
  if (block == live_.end()) return 0;
  const std::uint64_t bytes = block->second - block->first;
  live_bytes_ -= bytes;
  note_use(block->first, block->second);
  live_.erase(block);
  return bytes;
}

void Arena::return_pages(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t begin = round_up(offset, kPage);
  const std::uint64_t end = (offset + bytes) / kPage * kPage;
  if (begin < end) madvise(base_ + begin, end - begin, MADV_DONTNEED);
}

void Arena::return_dead_pages() {
  std::uint64_t dead = 0;
  for (const auto& [start, end] : live_) {
    return_pages(dead, start - dead);
    dead = end;
  }
  if (dead < top_) return_pages(dead, top_ - dead);
}

double Arena::resident_part(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t begin = round_up(offset, kPage);
  const std::uint64_t end = (offset + bytes) / kPage * kPage;
  if (begin >= end) return 1.0;
  std::vector<unsigned char> pages((end - begin) / kPage);
  if (mincore(base_ + begin, end - begin, pages.data()) != 0) return 1.0;
  const auto resident = std::count_if(pages.begin(), pages.end(),
                                      [](unsigned char page) { return (page & 1) != 0; });
  return static_cast<double>(resident) / static_cast<double>(pages.size());
}

std::uint64_t Arena::release_cold(std::uint32_t age) {
  ++now_;
  if (now_ <= age) return 0;
  const std::uint32_t oldest = now_ - age;
  std::uint64_t returned = 0;
  auto block = live_.begin();
  for (std::size_t i = 0; i < last_use_.size(); ++i) {
    if (last_use_[i] == 0 || last_use_[i] >= oldest) continue;
    const std::uint64_t begin = i * kHugePage;
    while (block != live_.end() && block->second <= begin) ++block;
    if (block != live_.end() && block->first < begin + kHugePage) continue;
    if (madvise(base_ + begin, kHugePage, MADV_DONTNEED) != 0) continue;
    last_use_[i] = 0;
    returned += kHugePage;
  }
  return returned;
}

}  // namespace memplan
