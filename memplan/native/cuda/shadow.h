// What torch reserves of a device under plans, and what it would reserve without them: two
// models of its allocator, one of the blocks that it serves, the arenas among them, and one
// of all that the program asked for. What plans add shows as the first exceeds the second.
//
// In neither are requests in memory pools and under capture, those made while no plan is in
// force or the loader is interrupted, and blocks that wait for another stream: torch has them
// either way. The models are of torch's default settings.
//
// Not thread-safe: the owner holds a lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory_resource>
#include <optional>
#include <unordered_map>

#include "replay/caching.h"

namespace memplan::cuda {

class Shadow {
  struct Models;

 public:
  using Block = CachingModel::Block;
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

  // Bytes that torch may reserve though the program would not need them yet without plans:
  // it does later, by a recording. kUnlimited where that is not known.
  void expect(std::uint64_t bytes) { expected_ = std::max(expected_, bytes); }
  void expect_nothing() { expected_ = 0; }
  // What torch would have reserved at most without plans, or may by `expect`.
  std::uint64_t limit() const { return std::max({most_native_, native_, expected_}); }
  std::uint64_t most_natively() const { return most_native_; }
  std::uint64_t most_reserved() const { return most_outside_; }

  // A request that was made of a stream.
  struct Asked {
    Models* models = nullptr;
    Block* native = nullptr;
    std::uint64_t growth = 0;  // bytes that torch would have reserved for it
  };
  // A stream asks for `bytes`; without plans the block would be torch's. One of the next
  // four is to follow.
  Asked request(std::uint64_t bytes, std::int64_t stream) {
    Asked asked = {&of(stream)};
    CachingModel& native = asked.models->native;
    const std::uint64_t before = native.reserved();
    asked.native = native.allocate(bytes);
    asked.growth = native.reserved() - before;
    native_ += asked.growth;
    under_way_ += asked.growth;
    return asked;
  }
  // Where such a block lies: in an arena, or torch serves it.
  void in_arena(const void* address, const Asked& asked) { lies(address, asked, nullptr); }
  void outside(const void* address, const Asked& asked, std::uint64_t bytes) {
    lies(address, asked, arena(bytes, asked.models->stream));
  }
  // Its end will not be seen; or there is no memory for it, and torch has emptied its cache.
  void drop(const Asked& asked) {
    under_way_ -= asked.growth;
    asked.models->native.free(asked.native);
  }
  void fail(const Asked& asked) {
    drop(asked);
    empty_cache();
  }
  std::optional<std::int64_t> stream_of(const void* address) const {
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return std::nullopt;
    return found->second.models->stream;
  }
  // Whether the block at `address` was known; it is freed. Without memory for our own books
  // it stays in the models.
  bool release(const void* address) noexcept {
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return false;
    const Lying lying = found->second;
    blocks_.erase(found);
    try {
      if (lying.outside != nullptr) lying.models->outside.free(lying.outside);
      lying.models->native.free(lying.native);
    } catch (...) {
      return true;
    }
    return true;
  }

  // torch serves an arena; and has it back.
  Block* arena(std::uint64_t bytes, std::int64_t stream) {
    Models& models = of(stream);
    Block* block = nullptr;
    outside_ += change(models.outside, [&] { block = models.outside.allocate(bytes); });
    most_outside_ = std::max(most_outside_, outside_);
    return block;
  }
  void arena_gone(Block* block, std::int64_t stream) { of(stream).outside.free(block); }

  // Bytes that torch would reserve beside those it has, if it served `bytes` now; and
  // how many of them lie beyond the limit.
  std::uint64_t growth(std::uint64_t bytes, std::int64_t stream) {
    return of(stream).outside.growth(bytes);
  }
  std::uint64_t excess(std::uint64_t bytes, std::int64_t stream) {
    const std::uint64_t more = growth(bytes, stream), after = reserved() + more;
    return more > 0 && after > limit() ? after - limit() : 0;
  }
  // An arena is in the making, for which torch will reserve so many bytes more; or it was
  // made, or not.
  void promise(std::uint64_t bytes) { promised_ += bytes; }
  void settle(std::uint64_t bytes) { promised_ -= bytes; }
  // Whether it may serve them; not if no limit is known.
  bool has_room(std::uint64_t bytes, std::int64_t stream) {
    return expected_ != kUnlimited && excess(bytes, stream) == 0;
  }
  // Bytes that torch would give back if its cache were emptied.
  std::uint64_t idle() const {
    std::uint64_t sum = 0;
    for (const Models& models : models_) sum += models.outside.idle();
    return sum;
  }
  std::uint64_t reserved() const { return outside_ + promised_; }

  // The cache is emptied: for an arena, or by the program, which would do so without plans.
  void empty_outside() {
    for (Models& models : models_) {
      outside_ += change(models.outside, [&] { models.outside.empty_cache(); });
    }
  }
  void empty_cache() {
    empty_outside();
    for (Models& models : models_) {
      native_ += change(models.native, [&] { models.native.empty_cache(); });
    }
  }

 private:
  struct Models {
    explicit Models(std::int64_t id) : stream(id) {}
    std::int64_t stream;
    CachingModel native;
    CachingModel outside;
  };
  struct Lying {
    Block* native;
    Block* outside;  // null: in an arena
    Models* models;
  };

  void lies(const void* address, const Asked& asked, Block* outside) {
    under_way_ -= asked.growth;
    most_native_ = std::max(most_native_, native_ - under_way_);
    release(address);  // of one that was freed past us
    blocks_[address] = {asked.native, outside, asked.models};
  }
  Models& of(std::int64_t stream) {
    for (Models& models : models_) {
      if (models.stream == stream) return models;
    }
    return models_.emplace_back(stream);
  }
  // By how much `act` changes what the model has reserved; it may wrap, as sums do.
  template <typename Act>
  static std::uint64_t change(const CachingModel& model, Act act) {
    const std::uint64_t before = model.reserved();
    act();
    return model.reserved() - before;
  }

  std::list<Models> models_;  // of each stream
  std::pmr::unsynchronized_pool_resource memory_{own_pages()};
  std::pmr::unordered_map<const void*, Lying> blocks_{&memory_};
  std::uint64_t native_ = 0;  // bytes reserved
  std::uint64_t under_way_ = 0;  // of them, for requests of which nothing is known yet
  std::uint64_t promised_ = 0;
  std::uint64_t outside_ = 0;
  std::uint64_t most_native_ = 0;
  std::uint64_t most_outside_ = 0;
  std::uint64_t expected_ = 0;
};

}  // namespace memplan::cuda
