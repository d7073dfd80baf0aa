// A model of torch's CUDA caching allocator with expandable_segments: what it reserves.
//
// Small requests, of up to 1 MiB, and large ones each have one range of addresses, of which
// memory is mapped in units of 2 and 20 MiB. A request takes the smallest free block that
// holds it, the one at the end of mapped memory last, since that can grow; what is left is
// split off. Where no block holds it, memory is mapped at the lowest address where enough
// is free or unmapped. One stream, no private pools, no block that waits for another stream.
//
// Not thread-safe: the owner holds a lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace memplan {

class ExpandableModel {
 public:
  // The address of a block for `bytes`, at least 1.
  std::uint64_t allocate(std::uint64_t bytes);
  // The block at `address`, which `allocate` returned.
  void free(std::uint64_t address);
  // Unmaps every unit that no block lies in.
  void empty_cache();
  std::uint64_t reserved() const { return pools_[0].mapped + pools_[1].mapped; }

 private:
  enum class State { kUsed, kFree, kUnmapped };
  struct Part {
    std::uint64_t size;
    State state;
  };
  using Parts = std::map<std::uint64_t, Part>;  // by address, without gaps

  struct Pool {
    explicit Pool(std::uint64_t bytes);
    std::uint64_t allocate(std::uint64_t bytes);
    void free(Parts::iterator part);
    void empty_cache();

    std::uint64_t unit;
    Parts parts;
    std::set<std::pair<std::uint64_t, std::uint64_t>> holes;  // free: size, address
    std::set<std::uint64_t> unmapped;                         // addresses
    std::uint64_t mapped = 0;

   private:
    std::uint64_t room(std::uint64_t address) const;
    Parts::iterator best(std::uint64_t bytes);
    Parts::iterator map(std::uint64_t bytes);
    Parts::iterator become(Parts::iterator part, State state);
    void list(Parts::iterator part, bool there);
    Parts::iterator split(Parts::iterator part, std::uint64_t bytes);
  };

  // Ranges of addresses so far apart that neither reaches the other.
  static constexpr std::uint64_t kApart = std::uint64_t{1} << 60;

  std::array<Pool, 2> pools_ = {Pool(2 << 20), Pool(20 << 20)};
};

}  // namespace memplan
