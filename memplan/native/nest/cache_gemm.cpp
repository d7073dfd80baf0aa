#include "nest/cache_gemm.h"

#include <algorithm>
#include <stdexcept>

namespace memplan::nest {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace

Im2colGemm::Im2colGemm(const ConvTensors& tensors, const Blocks& blocks)
    : tensors_(tensors), blocks_(blocks) {
  const Extents& n = tensors.shape().size;
  const RegisterTile& tile = tensors.tile();
  require(blocks.depth >= 1 && blocks.rows >= 1 && blocks.columns >= 1 &&
              blocks.rows % tile.x == 0 && blocks.columns % tile.k == 0,
          "blocks must be whole register tiles");
  depth_ = n[kC] * n[kFh] * n[kFw];
  positions_ = n[kX] * n[kY];
  element_ = static_cast<std::uint64_t>(tensors.layout().element_bytes);
  columns_ = tensors.end();
  panels_ = columns_ + whole_pages(static_cast<std::uint64_t>(depth_ * positions_) *
                                   element_);
}

void Im2colGemm::run(CacheSim& caches, const std::function<void()>& poll) const {
  const Extents& n = tensors_.shape().size;
  for (std::int64_t b = 0; b < n[kB]; ++b)
    for (std::int64_t g = 0; g < n[kG]; ++g) {
      im2col(caches, b, g);
      poll();
      product(caches, poll, b, g);
    }
}

void Im2colGemm::im2col(CacheSim& caches, std::int64_t b, std::int64_t g) const {
  const ConvShape& shape = tensors_.shape();
  const Extents& n = shape.size;
  const std::uint64_t stride = static_cast<std::uint64_t>(shape.stride_x) * element_;
  // Read and write alternate, 8 elements at a time as vector registers do it.
  constexpr std::int64_t kVector = 8;
  std::uint64_t to = columns_;
  for (std::int64_t c = 0; c < n[kC]; ++c)
    for (std::int64_t fh = 0; fh < n[kFh]; ++fh)
      for (std::int64_t fw = 0; fw < n[kFw]; ++fw)
        for (std::int64_t y = 0; y < n[kY]; ++y)
          for (std::int64_t x = 0; x < n[kX]; x += kVector) {
            const std::int64_t wide = std::min(kVector, n[kX] - x);
            const std::int64_t row = y * shape.stride_y + fh;
            caches.run(tensors_.input(b, g, c, row, x * shape.stride_x + fw), wide,
                       stride, false);
            caches.run(to, wide, element_, true);
            to = at(to, wide);
          }
}

void Im2colGemm::product(CacheSim& caches, const std::function<void()>& poll,
                         std::int64_t b, std::int64_t g) const {
  const auto part = [](std::int64_t from, std::int64_t most, std::int64_t end) {
    return Span{from, std::min(most, end - from)};
  };
  const std::int64_t width = tensors_.shape().size[kK];
  for (std::int64_t k = 0; k < width; k += blocks_.columns) {
    const Span channels = part(k, blocks_.columns, width);
    for (std::int64_t p = 0; p < depth_; p += blocks_.depth) {
      const Span depth = part(p, blocks_.depth, depth_);
      for (std::int64_t m = 0; m < positions_; m += blocks_.rows) {
        const Span positions = part(m, blocks_.rows, positions_);
        poll();
        pack_columns(caches, depth, positions);
        block(caches, b, g, depth, positions, channels);
      }
    }
  }
}

std::uint64_t Im2colGemm::at(std::uint64_t base, std::int64_t elements) const {
  return base + static_cast<std::uint64_t>(elements) * element_;
}

std::uint64_t Im2colGemm::kernel_at(std::int64_t g, std::int64_t k,
                                    std::int64_t p) const {
  const Extents& n = tensors_.shape().size;
  return tensors_.kernel(g, k, p / (n[kFh] * n[kFw]), p / n[kFw] % n[kFh], p % n[kFw]);
}

void Im2colGemm::pack_columns(CacheSim& caches, Span depth, Span positions) const {
  const std::int64_t high = tensors_.tile().x;
  // Several panels side by side, so that a line of the columns is read only once.
  constexpr std::int64_t kPanels = 4;
  for (std::int64_t m = 0; m < positions.size; m += kPanels * high)
    for (std::int64_t p = 0; p < depth.size; ++p)
      for (std::int64_t i = m; i < std::min(m + kPanels * high, positions.size);
           i += high) {
        const std::int64_t from = (depth.from + p) * positions_ + positions.from + i;
        caches.run(at(columns_, from), std::min(high, positions.size - i), element_,
                   false);
        caches.run(at(panels_, i * depth.size + p * high), high, element_, true);
      }
}

void Im2colGemm::block(CacheSim& caches, std::int64_t b, std::int64_t g, Span depth,
                       Span positions, Span channels) const {
  const std::int64_t high = tensors_.tile().x, wide = tensors_.tile().k;
  for (std::int64_t k = 0; k < channels.size; k += wide)
    for (std::int64_t m = 0; m < positions.size; m += high) {
      const std::uint64_t panel = at(panels_, m * depth.size);
      const std::uint64_t weights = kernel_at(g, channels.from + k, depth.from);
      for (std::int64_t p = 0; p < depth.size; ++p) {
        caches.run(at(panel, p * high), high, element_, false);
        caches.run(at(weights, p * wide), wide, element_, false);
      }
      add_to_outputs(caches, b, g, depth.from == 0,
                     {positions.from + m, std::min(high, positions.size - m)},
                     {channels.from + k, std::min(wide, channels.size - k)});
    }
}

void Im2colGemm::add_to_outputs(CacheSim& caches, std::int64_t b, std::int64_t g,
                                bool first, Span positions, Span channels) const {
  const std::int64_t row = tensors_.shape().size[kX];
  const std::int64_t end = positions.from + positions.size;
  for (std::int64_t k = channels.from; k < channels.from + channels.size; ++k)
    for (std::int64_t m = positions.from; m < end;) {
      const std::int64_t together = std::min(end - m, row - m % row);
      const std::uint64_t to = tensors_.output(b, g, k, m / row, m % row);
      if (!first) caches.run(to, together, element_, false);
      caches.run(to, together, element_, true);
      m += together;
    }
}

}  // namespace memplan::nest
