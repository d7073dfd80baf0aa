#include "replay/caching.h"

#include <new>

namespace memplan {
namespace {

constexpr std::uint64_t kUnit = 512;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kSmallRequest = kMiB;  // the largest from a small segment
constexpr std::uint64_t kSmallSegment = 2 * kMiB;
constexpr std::uint64_t kMediumRequest = 10 * kMiB;  // from here on, a segment of its own
constexpr std::uint64_t kMediumSegment = 20 * kMiB;
constexpr std::uint64_t kLargeRounding = 2 * kMiB;

std::uint64_t segment_for(std::uint64_t bytes) {
  if (bytes <= kSmallRequest) return kSmallSegment;
  if (bytes < kMediumRequest) return kMediumSegment;
  return round_up(bytes, kLargeRounding);
}

}  // namespace

// A part of a segment; free ones are in their pool.
struct CachingModel::Block {
  std::uint64_t address;
  std::uint64_t size;
  bool small;
  bool free = true;
  Block* before = nullptr;  // the segment's neighbouring parts
  Block* after = nullptr;

  bool whole() const { return before == nullptr && after == nullptr; }
};

bool CachingModel::Smaller::operator()(const Block* left, const Block* right) const {
  if (left->size != right->size) return left->size < right->size;
  return left->address < right->address;
}

CachingModel::Block* CachingModel::allocate(std::uint64_t bytes) {
  const std::uint64_t wanted = round_up(bytes, kUnit);
  const bool small = wanted <= kSmallRequest;
  Block* block = best(free_[small ? 0 : 1], wanted);
  if (block != nullptr) {
    unlist(block);
  } else {
    const std::uint64_t size = segment_for(wanted);
    block = made({next_, size, small});
    next_ += size + kLargeRounding;
    reserved_ += size;
  }
  block->free = false;
  const std::uint64_t left = block->size - wanted;
  if (small ? left < kUnit : left <= kSmallRequest) return block;
  block->size = wanted;
  Block* rest = made({block->address + wanted, left, small, true, block, block->after});
  if (block->after != nullptr) block->after->before = rest;
  block->after = rest;
  list(rest);
  return block;
}

void CachingModel::free(Block* block) {
  block->free = true;
  if (Block* after = block->after; after != nullptr && after->free) {
    unlist(after);
    join(block, after);
  }
  if (Block* before = block->before; before != nullptr && before->free) {
    unlist(before);
    join(before, block);
    block = before;
  }
  list(block);
}

void CachingModel::empty_cache() {
  for (Pool& pool : free_) {
    for (auto at = pool.begin(); at != pool.end();) {
      Block* block = *at;
      if (!block->whole()) {
        ++at;
        continue;
      }
      at = pool.erase(at);
      reserved_ -= block->size;
      unmade(block);
    }
  }
  idle_ = 0;
}

std::uint64_t CachingModel::growth(std::uint64_t bytes) const {
  const std::uint64_t wanted = round_up(bytes, kUnit);
  const Pool& pool = free_[wanted <= kSmallRequest ? 0 : 1];
  const bool held = !pool.empty() && (*pool.rbegin())->size >= wanted;
  return held ? 0 : segment_for(wanted);
}

CachingModel::Pool& CachingModel::pool_of(const Block& block) {
  return free_[block.small ? 0 : 1];
}

CachingModel::Block* CachingModel::best(Pool& pool, std::uint64_t bytes) const {
  Block wanted = {0, bytes, false};
  const auto found = pool.lower_bound(&wanted);
  return found == pool.end() ? nullptr : *found;
}

CachingModel::Block* CachingModel::made(Block block) {
  void* place = memory_.allocate(sizeof(Block), alignof(Block));
  return new (place) Block(block);
}

void CachingModel::unmade(Block* block) {
  memory_.deallocate(block, sizeof(Block), alignof(Block));
}

void CachingModel::list(Block* block) {
  if (block->whole()) idle_ += block->size;
  pool_of(*block).insert(block);
}

void CachingModel::unlist(Block* block) {
  if (block->whole()) idle_ -= block->size;
  pool_of(*block).erase(block);
}

void CachingModel::join(Block* first, Block* second) {
  first->size += second->size;
  first->after = second->after;
  if (second->after != nullptr) second->after->before = first;
  unmade(second);
}

}  // namespace memplan
