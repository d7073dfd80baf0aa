// The references of im2col and a matrix product, sent straight to a CacheSim.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "nest/cache_sim.h"
#include "nest/cache_tensors.h"
#include "require.h"

namespace memplan::nest {

/// im2col, and a matrix product of the columns with the kernel for every image and
/// group: output [Y X][K] = columns [Y X][C Fh Fw] x kernel. Columns are packed into
/// panels of the register tile's height; the kernel is packed already.
class Im2colGemm {
 public:
  /// Depth, rows (positions) and columns (channels) of the blocks that are packed; rows
  /// and columns are multiples of the register tile's.
  struct Blocks {
    std::int64_t depth, rows, columns;
  };
  /// poll: called now and then; what it throws ends the run. All must outlive the run.
  /// Throws std::invalid_argument for other blocks.
  Im2colGemm(const ConvTensors& tensors, const Blocks& blocks, CacheSim& caches,
             const std::function<void()>& poll)
      : tensors_(tensors),
        size_(tensors.shape().size),
        blocks_(blocks),
        high_(tensors.tile().x),
        wide_(tensors.tile().k),
        depth_(size_[kC] * size_[kFh] * size_[kFw]),
        positions_(size_[kX] * size_[kY]),
        columns_(tensors.end()),
        panels_(columns_ + tensors.pages(depth_ * positions_)),
        caches_(caches),
        poll_(poll) {
    require(blocks.depth >= 1 && blocks.rows >= 1 && blocks.columns >= 1 &&
                blocks.rows % high_ == 0 && blocks.columns % wide_ == 0,
            "blocks must be whole register tiles");
  }

  void run() {
    for (b_ = 0; b_ < size_[kB]; ++b_) {
      for (g_ = 0; g_ < size_[kG]; ++g_) {
        im2col();
        poll_();
        product();
      }
    }
  }

 private:
  struct Span {
    std::int64_t from, size;
  };

  void touch(std::uint64_t address, std::int64_t count, bool write) {
    caches_.run(address, count, tensors_.bytes(1), write);
  }

  void im2col() {
    const ConvShape& shape = tensors_.shape();
    // Read and write alternate, 8 elements at a time as vector registers do it.
    constexpr std::int64_t kVector = 8;
    std::uint64_t to = columns_;
    for (std::int64_t p = 0; p < depth_; ++p) {
      const std::int64_t fw = p % size_[kFw], fh = p / size_[kFw] % size_[kFh];
      const std::int64_t c = p / (size_[kFw] * size_[kFh]);
      for (std::int64_t y = 0; y < size_[kY]; ++y) {
        for (std::int64_t x = 0; x < size_[kX]; x += kVector) {
          const std::int64_t wide = std::min(kVector, size_[kX] - x);
          const std::int64_t row = y * shape.stride_y + fh;
          caches_.run(tensors_.input(b_, g_, c, row, x * shape.stride_x + fw), wide,
                      tensors_.bytes(shape.stride_x), false);
          touch(to, wide, true);
          to += tensors_.bytes(wide);
        }
      }
    }
  }

  void product() {
    const auto part = [](std::int64_t from, std::int64_t most, std::int64_t end) {
      return Span{from, std::min(most, end - from)};
    };
    for (std::int64_t k = 0; k < size_[kK]; k += blocks_.columns) {
      const Span channels = part(k, blocks_.columns, size_[kK]);
      for (std::int64_t p = 0; p < depth_; p += blocks_.depth) {
        const Span depth = part(p, blocks_.depth, depth_);
        for (std::int64_t m = 0; m < positions_; m += blocks_.rows) {
          const Span positions = part(m, blocks_.rows, positions_);
          poll_();
          pack_columns(depth, positions);
          block(depth, positions, channels);
        }
      }
    }
  }

  void pack_columns(Span depth, Span positions) {
    // Several panels side by side, so that a line of the columns is read only once.
    constexpr std::int64_t kPanels = 4;
    for (std::int64_t m = 0; m < positions.size; m += kPanels * high_) {
      const std::int64_t end = std::min(m + kPanels * high_, positions.size);
      for (std::int64_t p = 0; p < depth.size; ++p) {
        for (std::int64_t i = m; i < end; i += high_) {
          const std::int64_t from = (depth.from + p) * positions_ + positions.from + i;
          touch(columns_ + tensors_.bytes(from), std::min(high_, positions.size - i),
                false);
          touch(panels_ + tensors_.bytes(i * depth.size + p * high_), high_, true);
        }
      }
    }
  }

  void block(Span depth, Span positions, Span channels) {
    const std::int64_t fw = depth.from % size_[kFw];
    const std::int64_t fh = depth.from / size_[kFw] % size_[kFh];
    const std::int64_t c = depth.from / (size_[kFw] * size_[kFh]);
    for (std::int64_t k = 0; k < channels.size; k += wide_) {
      for (std::int64_t m = 0; m < positions.size; m += high_) {
        const std::uint64_t panel = panels_ + tensors_.bytes(m * depth.size);
        const std::uint64_t weights = tensors_.kernel(g_, channels.from + k, c, fh, fw);
        for (std::int64_t p = 0; p < depth.size; ++p) {
          touch(panel + tensors_.bytes(p * high_), high_, false);
          touch(weights + tensors_.bytes(p * wide_), wide_, false);
        }
        add_to_outputs(depth.from == 0,
                       {positions.from + m, std::min(high_, positions.size - m)},
                       {channels.from + k, std::min(wide_, channels.size - k)});
      }
    }
  }

  void add_to_outputs(bool first, Span positions, Span channels) {
    const std::int64_t row = size_[kX], end = positions.from + positions.size;
    for (std::int64_t k = channels.from; k < channels.from + channels.size; ++k) {
      for (std::int64_t m = positions.from; m < end;) {
        const std::int64_t together = std::min(end - m, row - m % row);
        const std::uint64_t to = tensors_.output(b_, g_, k, m / row, m % row);
        if (!first) touch(to, together, false);
        touch(to, together, true);
        m += together;
      }
    }
  }

  const ConvTensors& tensors_;
  const Extents size_;
  const Blocks blocks_;
  const std::int64_t high_, wide_;  // of a register tile
  const std::int64_t depth_, positions_;
  const std::uint64_t columns_, panels_;  // addresses
  CacheSim& caches_;
  const std::function<void()>& poll_;
  std::int64_t b_ = 0, g_ = 0;
};

}  // namespace memplan::nest
