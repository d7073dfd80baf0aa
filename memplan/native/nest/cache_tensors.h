// The tensors of a convolution in memory.
#pragma once

#include <array>
#include <cstdint>

namespace memplan::nest {

enum Dim { kX, kY, kC, kK, kFw, kFh, kB, kG, kDims };
using Extents = std::array<std::int64_t, kDims>;

/// X, Y: outputs; C, K: channels of one group. The input includes its padding.
struct ConvShape {
  Extents size;
  std::int64_t stride_x, stride_y;
};

/// Where elements lie, strides in elements: input [B][G C][rows][columns], output
/// [B][G K][rows][columns], one after the other in memory with the kernel between.
/// The kernel is packed: [G][K / tile_k][C][Fh][Fw][tile_k].
struct ConvLayout {
  std::int64_t element_bytes, input_row, input_plane, output_row, output_plane;
};

/// Outputs that stay in registers while the reduction's innermost loops go over them:
/// tile_x columns of tile_k channels. Each step reads tile_x inputs, tile_k weights.
struct RegisterTile {
  std::int64_t x, k;
};

/// Rounded up to pages of 4096 bytes, where allocators put large arrays.
std::uint64_t whole_pages(std::uint64_t bytes);

/// Byte addresses of the tensors of a layer.
class ConvTensors {
 public:
  /// Throws std::invalid_argument for sizes below 1 and strides that overlap.
  ConvTensors(const ConvShape& shape, const ConvLayout& layout,
              const RegisterTile& tile);

  /// c, k within the group g; column and row of the input.
  std::uint64_t input(std::int64_t b, std::int64_t g, std::int64_t c, std::int64_t row,
                      std::int64_t column) const;
  std::uint64_t output(std::int64_t b, std::int64_t g, std::int64_t k, std::int64_t y,
                       std::int64_t x) const;
  std::uint64_t kernel(std::int64_t g, std::int64_t k, std::int64_t c, std::int64_t fh,
                       std::int64_t fw) const;
  /// The first byte, of a line and a page, behind all tensors.
  std::uint64_t end() const { return end_; }

  const ConvShape& shape() const { return shape_; }
  const ConvLayout& layout() const { return layout_; }
  const RegisterTile& tile() const { return tile_; }

 private:
  ConvShape shape_;
  ConvLayout layout_;
  RegisterTile tile_;
  std::uint64_t input_ = 0, kernel_ = 0, output_ = 0, end_ = 0;
};

}  // namespace memplan::nest
