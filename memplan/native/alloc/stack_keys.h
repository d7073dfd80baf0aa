// What tells one stack from another.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "alloc/frames.h"

namespace memplan {

// A stack is told apart by its places, or by that of the forward pass and a node's type.
// Types are kept alive, as code objects are: an address stands for one of them only.
struct KeyView {
  std::span<const Place> places;
  const void* node = nullptr;
  std::int32_t origin = 0;  // the module, or the index of the forward pass's stack
  int phase = 0;  // a Phase
};

struct Key {
  std::vector<Place> places;
  const void* node;
  std::int32_t origin;
  int phase;
  explicit Key(const KeyView& view)
      : places(view.places.begin(), view.places.end()),
        node(view.node),
        origin(view.origin),
        phase(view.phase) {}
  operator KeyView() const { return {places, node, origin, phase}; }
};

// Known ones are looked for without making a key.
struct KeyHash {
  using is_transparent = void;
  std::size_t operator()(const KeyView& key) const {
    std::size_t sum = reinterpret_cast<std::size_t>(key.node) ^
                      (static_cast<std::size_t>(key.origin) << 3) ^
                      static_cast<std::size_t>(key.phase);
    for (const auto& [code, at] : key.places) {
      sum = (sum ^ reinterpret_cast<std::size_t>(code) ^
             (static_cast<std::size_t>(at) << 32)) *
            0x9E3779B97F4A7C15u;
    }
    return sum;
  }
};

struct KeyEqual {
  using is_transparent = void;
  bool operator()(const KeyView& a, const KeyView& b) const {
    return a.node == b.node && a.origin == b.origin && a.phase == b.phase &&
           std::ranges::equal(a.places, b.places);
  }
};

}  // namespace memplan
