#include "nest/cache_tensors.h"

#include <algorithm>
#include <stdexcept>

namespace memplan::nest {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::uint64_t whole_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPage = 4096;
  return (bytes + kPage - 1) & ~(kPage - 1);
}

ConvTensors::ConvTensors(const ConvShape& shape, const ConvLayout& layout,
                         const RegisterTile& tile)
    : shape_(shape), layout_(layout), tile_(tile) {
  const Extents& n = shape.size;
  require(std::all_of(n.begin(), n.end(), [](auto size) { return size >= 1; }) &&
              shape.stride_x >= 1 && shape.stride_y >= 1,
          "need sizes and strides of 1 and more");
  require(tile.x >= 1 && tile.k >= 1, "need a register tile of 1 and more");
  require(layout.element_bytes >= 1, "need elements of 1 byte and more");
  const std::int64_t columns = (n[kX] - 1) * shape.stride_x + n[kFw];
  const std::int64_t rows = (n[kY] - 1) * shape.stride_y + n[kFh];
  require(layout.input_row >= columns && layout.output_row >= n[kX] &&
              layout.input_plane >= (rows - 1) * layout.input_row + columns &&
              layout.output_plane >= (n[kY] - 1) * layout.output_row + n[kX],
          "rows or planes overlap");
  const auto bytes = [&](std::int64_t elements) {
    return whole_pages(static_cast<std::uint64_t>(elements * layout.element_bytes));
  };
  const std::int64_t blocks = ceil_div(n[kK], tile.k);
  kernel_ = input_ + bytes(n[kB] * n[kG] * n[kC] * layout.input_plane);
  output_ = kernel_ + bytes(n[kG] * blocks * tile.k * n[kC] * n[kFh] * n[kFw]);
  end_ = output_ + bytes(n[kB] * n[kG] * n[kK] * layout.output_plane);
}

std::uint64_t ConvTensors::input(std::int64_t b, std::int64_t g, std::int64_t c,
                                 std::int64_t row, std::int64_t column) const {
  const std::int64_t plane = (b * shape_.size[kG] + g) * shape_.size[kC] + c;
  const std::int64_t at =
      plane * layout_.input_plane + row * layout_.input_row + column;
  return input_ + static_cast<std::uint64_t>(at * layout_.element_bytes);
}

std::uint64_t ConvTensors::output(std::int64_t b, std::int64_t g, std::int64_t k,
                                  std::int64_t y, std::int64_t x) const {
  const std::int64_t plane = (b * shape_.size[kG] + g) * shape_.size[kK] + k;
  const std::int64_t at = plane * layout_.output_plane + y * layout_.output_row + x;
  return output_ + static_cast<std::uint64_t>(at * layout_.element_bytes);
}

std::uint64_t ConvTensors::kernel(std::int64_t g, std::int64_t k, std::int64_t c,
                                  std::int64_t fh, std::int64_t fw) const {
  const Extents& n = shape_.size;
  const std::int64_t block = g * ceil_div(n[kK], tile_.k) + k / tile_.k;
  const std::int64_t at =
      (((block * n[kC] + c) * n[kFh] + fh) * n[kFw] + fw) * tile_.k + k % tile_.k;
  return kernel_ + static_cast<std::uint64_t>(at * layout_.element_bytes);
}

}  // namespace memplan::nest
