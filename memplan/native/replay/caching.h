// A model of torch's CUDA caching allocator: what it reserves for given requests.
//
// Requests are rounded up to 512 bytes; those of up to 1 MiB are served from segments of
// 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments of their
// own in multiples of 2 MiB. A request takes the smallest free block that holds it, which
// is split where enough is left; a freed block joins its free neighbours. One stream, and
// the default settings: no expandable segments, no roundup divisions.
//
// Not thread-safe: the owner holds a lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <set>

#include "replay/ranges.h"

namespace memplan {

class CachingModel {
 public:
  struct Block;

  CachingModel() = default;
  CachingModel(const CachingModel&) = delete;
  CachingModel& operator=(const CachingModel&) = delete;

  // A block for `bytes`, at least 1; valid until it is freed.
  Block* allocate(std::uint64_t bytes);
  void free(Block* block);
  // Gives every segment without a block back.
  void empty_cache();

  // Bytes of the segment that `allocate` would make; 0 if a free block holds `bytes`.
  std::uint64_t growth(std::uint64_t bytes) const;
  std::uint64_t reserved() const { return reserved_; }  // bytes of all segments
  std::uint64_t idle() const { return idle_; }          // of those without a block

 private:
  // By size, then by address.
  struct Smaller {
    bool operator()(const Block* left, const Block* right) const;
  };
  using Pool = std::pmr::set<Block*, Smaller>;

  Pool& pool_of(const Block& block);
  Block* best(Pool& pool, std::uint64_t bytes) const;
  Block* made(Block block);
  void unmade(Block* block);
  void list(Block* block);
  void unlist(Block* block);
  void join(Block* first, Block* second);

  std::pmr::unsynchronized_pool_resource memory_{own_pages()};
  std::array<Pool, 2> free_ = {Pool(&memory_), Pool(&memory_)};  // small, large
  std::uint64_t next_ = 1 << 20;  // address of the next segment
  std::uint64_t reserved_ = 0;
  std::uint64_t idle_ = 0;
};

}  // namespace memplan
