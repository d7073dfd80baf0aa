// A recorded program under a plan, without a device: the loader's arenas serve it, and
// models of torch's allocator say what would be reserved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>

#include "cuda/arenas.h"

namespace memplan::cuda {

// kEmpty: torch gave back what it kept, as the program asked it to.
enum class Happening : std::int64_t { kRequest, kFree, kStep, kEmpty };

// What happened, in order: columns of one length. Streams are numbered, and 0 is the one
// that has a plan; steps and emptied caches have no address, size and stream.
struct Happenings {
  std::span<const std::int64_t> what;
  std::span<const std::int64_t> addresses;
  std::span<const std::int64_t> sizes;  // bytes
  std::span<const std::int64_t> streams;
};

// The most bytes of a device that torch would reserve for them.
struct Reserved {
  std::uint64_t natively;
  std::uint64_t planned;
};

// reserved: see Arenas::load. Throws std::invalid_argument for columns that differ in length.
inline Reserved dry_run(Table table, std::uint64_t reserved, const Happenings& all) {
  const std::size_t count = all.what.size();
  if (all.addresses.size() != count || all.sizes.size() != count ||
      all.streams.size() != count) {
    throw std::invalid_argument("the columns differ in length");
  }
  // Where arenas lie: above whatever an address may be.
  constexpr std::uint64_t kArena = std::uint64_t{1} << 62;
  const auto address_of = [](std::uint64_t number) {
    return reinterpret_cast<void*>(number);
  };
  const Runtime none;  // no block is used by several streams here
  Arenas arenas(none, 0);
  std::unordered_map<std::int64_t, void*> blocks;  // by recorded address
  arenas.load(0, std::move(table), reserved);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t recorded = all.addresses[i];
    switch (static_cast<Happening>(all.what[i])) {
      case Happening::kStep:
        arenas.next_step();
        break;
      case Happening::kEmpty:
        arenas.empty_cache();
        break;
      case Happening::kFree:
        if (const auto found = blocks.find(recorded); found != blocks.end()) {
          Arenas::Blocks returned;
          arenas.release(found->second, returned);
          blocks.erase(found);
        }
        break;
      case Happening::kRequest: {
        const auto bytes = static_cast<std::uint64_t>(all.sizes[i]);
        const Arenas::Answer answer = arenas.allocate(bytes, all.streams[i]);
        void* address = answer.address;
        if (answer.wanted != nullptr) {
          c10::DataPtr memory;
          memory.data = address_of(kArena);
          address = arenas.made(answer, std::move(memory), bytes);
        }
        if (address == nullptr) {
          address = address_of(static_cast<std::uint64_t>(recorded));
          arenas.served(answer, address, bytes, all.streams[i]);
        }
        blocks[recorded] = address;
        break;
      }
    }
  }
  return {arenas.shadow().most_natively(), arenas.shadow().most_reserved()};
}

}  // namespace memplan::cuda
