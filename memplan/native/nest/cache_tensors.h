// The tensors of a convolution in memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "require.h"

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

/// Byte addresses of the tensors of a layer.
class ConvTensors {
 public:
  /// Throws std::invalid_argument for sizes below 1 and strides that overlap.
  ConvTensors(const ConvShape& shape, const ConvLayout& layout,
              const RegisterTile& tile)
      : shape_(shape), layout_(layout), tile_(tile) {
    const Extents& n = shape.size;
    require(std::ranges::min(n) >= 1 && shape.stride_x >= 1 && shape.stride_y >= 1,
            "need sizes and strides of 1 and more");
    require(tile.x >= 1 && tile.k >= 1, "need a register tile of 1 and more");
    require(layout.element_bytes >= 1, "need elements of 1 byte and more");
    const std::int64_t columns = (n[kX] - 1) * shape.stride_x + n[kFw];
    const std::int64_t rows = (n[kY] - 1) * shape.stride_y + n[kFh];
    require(layout.input_row >= columns && layout.output_row >= n[kX] &&
                layout.input_plane >= (rows - 1) * layout.input_row + columns &&
                layout.output_plane >= (n[kY] - 1) * layout.output_row + n[kX],
            "rows or planes overlap");
    kernel_ = pages(n[kB] * n[kG] * n[kC] * layout.input_plane);
    output_ = kernel_ + pages(n[kG] * blocks() * tile.k * n[kC] * n[kFh] * n[kFw]);
    end_ = output_ + pages(n[kB] * n[kG] * n[kK] * layout.output_plane);
  }

  /// Bytes of so many elements, rounded up to pages of 4096 bytes, where allocators put
  /// large arrays.
  std::uint64_t pages(std::int64_t elements) const {
    constexpr std::uint64_t kPage = 4096;
    return (bytes(elements) + kPage - 1) & ~(kPage - 1);
  }

  /// c, k within the group g; column and row of the input.
  std::uint64_t input(std::int64_t b, std::int64_t g, std::int64_t c, std::int64_t row,
                      std::int64_t column) const {
    const std::int64_t plane = (b * shape_.size[kG] + g) * shape_.size[kC] + c;
    return bytes(plane * layout_.input_plane + row * layout_.input_row + column);
  }
  std::uint64_t output(std::int64_t b, std::int64_t g, std::int64_t k, std::int64_t y,
                       std::int64_t x) const {
    const std::int64_t plane = (b * shape_.size[kG] + g) * shape_.size[kK] + k;
    return output_ + bytes(plane * layout_.output_plane + y * layout_.output_row + x);
  }
  std::uint64_t kernel(std::int64_t g, std::int64_t k, std::int64_t c, std::int64_t fh,
                       std::int64_t fw) const {
    const Extents& n = shape_.size;
    const std::int64_t step = ((g * blocks() + k / tile_.k) * n[kC] + c) * n[kFh] + fh;
    return kernel_ + bytes((step * n[kFw] + fw) * tile_.k + k % tile_.k);
  }
  /// The first byte, of a line and a page, behind all tensors.
  std::uint64_t end() const { return end_; }
  std::uint64_t bytes(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements * layout_.element_bytes);
  }

  const ConvShape& shape() const { return shape_; }
  const RegisterTile& tile() const { return tile_; }

 private:
  // Of the kernel's channels, in one group.
  std::int64_t blocks() const { return (shape_.size[kK] + tile_.k - 1) / tile_.k; }

  ConvShape shape_;
  ConvLayout layout_;
  RegisterTile tile_;
  std::uint64_t kernel_ = 0, output_ = 0, end_ = 0;  // the input begins at 0
};

}  // namespace memplan::nest
