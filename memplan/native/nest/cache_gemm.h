// The references of im2col and a matrix product, sent straight to a CacheSim.
#pragma once

#include <cstdint>
#include <functional>

#include "nest/cache_sim.h"
#include "nest/cache_tensors.h"

namespace memplan::nest {

/// im2col, and a matrix product of the columns with the kernel for every image and
/// group: output [Y X][K] = columns [Y X][C Fh Fw] x kernel. Columns are packed into
/// panels of the register tile's height; the kernel is packed already.
class Im2colGemm {
 public:
  /// Depth, rows (positions) and columns (channels) of the blocks that are packed; rows
  /// and columns are multiples of the register tile's. Throws std::invalid_argument.
  struct Blocks {
    std::int64_t depth, rows, columns;
  };
  Im2colGemm(const ConvTensors& tensors, const Blocks& blocks);

  /// poll: called now and then; what it throws ends the run.
  void run(CacheSim& caches, const std::function<void()>& poll) const;

 private:
  struct Span {
    std::int64_t from, size;
  };

  void im2col(CacheSim& caches, std::int64_t b, std::int64_t g) const;
  void product(CacheSim& caches, const std::function<void()>& poll, std::int64_t b,
               std::int64_t g) const;
  void pack_columns(CacheSim& caches, Span depth, Span positions) const;
  void block(CacheSim& caches, std::int64_t b, std::int64_t g, Span depth,
             Span positions, Span channels) const;
  void add_to_outputs(CacheSim& caches, std::int64_t b, std::int64_t g, bool first,
                      Span positions, Span channels) const;
  std::uint64_t at(std::uint64_t base, std::int64_t elements) const;
  std::uint64_t kernel_at(std::int64_t g, std::int64_t k, std::int64_t p) const;

  ConvTensors tensors_;
  Blocks blocks_;
  std::int64_t depth_, positions_;
  std::uint64_t element_;
  std::uint64_t columns_, panels_;
};

}  // namespace memplan::nest
