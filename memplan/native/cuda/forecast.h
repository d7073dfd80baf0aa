// What torch would reserve of a device for a recorded program, by models of its allocator:
// by itself, with expandable_segments, and under a plan, whose arenas are the loader's own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "cuda/arenas.h"
#include "replay/caching.h"
#include "replay/expandable.h"

namespace memplan::cuda {

// kEmpty: torch gave back what it kept, as the program asked it to.
enum class EventKind : std::int64_t { kRequest, kFree, kStep, kEmpty };

// What happened, in order: columns of one length. Streams are numbered, and 0 is the one
// that has a plan; steps and emptied caches have no address, size and stream.
struct EventColumns {
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;
  std::span<const std::int64_t> what;
  std::span<const std::int64_t> addresses;
  std::span<const std::int64_t> sizes;  // bytes
  std::span<const std::int64_t> streams;

  // Calls one function for each. Throws std::invalid_argument for columns that differ in
  // length, and for sizes that no device has.
  template <typename Allocator>
  void replay(Allocator& allocator) const {
    const std::size_t count = what.size();
    if (addresses.size() != count || sizes.size() != count || streams.size() != count) {
      throw std::invalid_argument("the columns differ in length");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto bytes = static_cast<std::uint64_t>(sizes[i]);
      if (bytes > kMostBytes) throw std::invalid_argument("a size is out of range");
      switch (static_cast<EventKind>(what[i])) {
        case EventKind::kRequest: allocator.request(addresses[i], bytes, streams[i]); break;
        case EventKind::kFree: allocator.free(addresses[i]); break;
        case EventKind::kStep: allocator.step(); break;
        case EventKind::kEmpty: allocator.empty_cache(); break;
      }
    }
  }
};

// A model of each stream's blocks, and the most that they come to.
template <typename Model>
class Streams {
 public:
  void request(std::int64_t name, std::uint64_t bytes, std::int64_t stream) {
    Model& model = models_[stream];
    const std::uint64_t before = model.reserved();
    blocks_.insert_or_assign(name, std::pair(&model, model.allocate(bytes)));
    reserved_ += model.reserved() - before;
    most_ = std::max(most_, reserved_);
  }
  void free(std::int64_t name) {
    const auto found = blocks_.find(name);
    if (found == blocks_.end()) return;
    found->second.first->free(found->second.second);
    blocks_.erase(found);
  }
  void step() {}
  void empty_cache() {
    reserved_ = 0;
    for (auto& [stream, model] : models_) {
      model.empty_cache();
      reserved_ += model.reserved();
    }
  }
  std::uint64_t most() const { return most_; }

 private:
  using Block = decltype(std::declval<Model&>().allocate(1));
  std::map<std::int64_t, Model> models_;
  std::unordered_map<std::int64_t, std::pair<Model*, Block>> blocks_;  // by address
  std::uint64_t reserved_ = 0;
  std::uint64_t most_ = 0;
};

// The loader's arenas in such a program. Nothing is there at their addresses.
class Planned {
 public:
  // reserved: see Arenas::load.
  Planned(Table table, std::uint64_t reserved) {
    arenas_.load(0, std::move(table), reserved);
  }
  void request(std::int64_t name, std::uint64_t bytes, std::int64_t stream) {
    const Arenas::Answer answer = arenas_.allocate(bytes, stream);
    if (answer.empty) arenas_.emptied();
    void* address = answer.address;
    if (answer.wanted != nullptr) {
      c10::DataPtr memory;
      memory.data = pointer(kArena);
      address = arenas_.made(answer, std::move(memory), bytes);
    }
    if (address == nullptr) {
      address = pointer(static_cast<std::uint64_t>(name));
      arenas_.served(answer, address, bytes);
    }
    blocks_[name] = address;
  }
  void free(std::int64_t name) {
    const auto found = blocks_.find(name);
    if (found == blocks_.end()) return;
    Arenas::Blocks returned;
    arenas_.release(found->second, returned);
    blocks_.erase(found);
  }
  void step() { arenas_.next_step(); }
  void empty_cache() { arenas_.empty_cache(); }
  std::uint64_t most() const { return arenas_.shadow().most_reserved(); }

 private:
  static constexpr std::uint64_t kArena = std::uint64_t{1} << 62;  // above any address
  static void* pointer(std::uint64_t number) { return reinterpret_cast<void*>(number); }

  const Runtime none_;  // no block is used by several streams here
  Arenas arenas_{none_, 0};
  std::unordered_map<std::int64_t, void*> blocks_;  // by recorded address
};

}  // namespace memplan::cuda
