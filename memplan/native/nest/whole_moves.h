// Changes of one loop nest into others.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "nest/whole_cost.h"

namespace memplan::nest::whole {

using Nest = std::vector<Loop>;

/// The moves there are: a loop elsewhere, of another extent, one more, one less.
class Moves {
 public:
  explicit Moves(const Cost& cost);

  /// The nest without loops of one trip, and loops of one dimension side by side as
  /// one, unless a stripe may lie between them; extents ascend in each dimension and
  /// end with its size.
  void tidy(Nest& nest) const;

  /// One of them, at random.
  void random(Nest& nest, std::mt19937_64& draw) const;

  /// Calls offer(changed) with every nest that one move leads to, and with those of two
  /// small changes of extents, until it returns true.
  bool any(const Nest& nest, const std::function<bool(Nest&)>& offer) const;

 private:
  using Draw = std::mt19937_64;

  bool outermost(const Nest& nest, std::size_t place) const;
  std::vector<std::int64_t> near(int dim, std::int64_t extent) const;
  void resize(Nest& nest, Draw& draw) const;
  void insert(Nest& nest, Draw& draw) const;
  bool elsewhere(const Nest& nest, const std::function<bool(Nest&)>& offer) const;
  bool resized(const Nest& nest, const std::function<bool(Nest&)>& offer) const;
  bool inserted(const Nest& nest, const std::function<bool(Nest&)>& offer) const;
  bool both(const Nest& nest, const std::function<bool(Nest&)>& offer) const;

  std::array<std::int64_t, kAxes> size_{}, base_{};
  std::array<bool, kAxes> striped_{};
  std::vector<int> dims_;  // that need a loop
  // By dimension, extents that are worth trying, ascending.
  std::array<std::vector<std::int64_t>, kAxes> extents_;
};

}  // namespace memplan::nest::whole
