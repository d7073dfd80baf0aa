#include "nest/cache_conv.h"

#include <algorithm>
#include <stdexcept>

namespace memplan::nest {

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

constexpr std::uint64_t kStepsBetweenPolls = 1 << 20;

bool reduces(int dim) { return dim == kC || dim == kFw || dim == kFh; }

}  // namespace

BlockedConv::BlockedConv(const ConvTensors& tensors, std::span<const Loop> loops)
    : tensors_(tensors) {
  Extents reached;
  reached.fill(1);
  reached[kX] = tensors.tile().x;
  reached[kK] = tensors.tile().k;
  for (const Loop& loop : loops) {
    require(loop.dim >= 0 && loop.dim < kDims, "a loop goes over no dimension");
    require(loop.extent > reached[loop.dim], "a loop's extent does not grow");
    require(loop.dim != kK || loop.extent % tensors.tile().k == 0 ||
                loop.extent >= tensors.shape().size[kK],
            "a tile of channels cuts a register tile");
    loops_.push_back({loop.dim, reached[loop.dim]});
    reached[loop.dim] = loop.extent;
  }
  high_ = tensors.shape().size;
  for (int dim = 0; dim < kDims; ++dim)
    require(reached[dim] >= high_[dim], "the loops do not cover the layer");
  while (in_registers_ < loops_.size() && reduces(loops_[in_registers_].dim))
    ++in_registers_;
}

void BlockedConv::run(CacheSim& caches, const std::function<void()>& poll) {
  caches_ = &caches;
  poll_ = &poll;
  descend(loops_.size());
}

void BlockedConv::descend(std::size_t level) {
  if (level == 0) {
    multiply();
  } else {
    const auto [dim, step] = loops_[level - 1];
    const std::int64_t low = low_[dim], high = high_[dim];
    for (std::int64_t at = low; at < high; at += step) {
      low_[dim] = at;
      high_[dim] = std::min(at + step, high);
      descend(level - 1);
    }
    low_[dim] = low;
    high_[dim] = high;
  }
  if (level == in_registers_) add_to_outputs();
}

void BlockedConv::multiply() {
  if (++steps_ % kStepsBetweenPolls == 0) (*poll_)();
  const ConvShape& shape = tensors_.shape();
  const auto element = static_cast<std::uint64_t>(tensors_.layout().element_bytes);
  const auto stride = static_cast<std::uint64_t>(shape.stride_x) * element;
  caches_->run(tensors_.input(low_[kB], low_[kG], low_[kC],
                            low_[kY] * shape.stride_y + low_[kFh],
                            low_[kX] * shape.stride_x + low_[kFw]),
             high_[kX] - low_[kX], stride, false);
  caches_->run(tensors_.kernel(low_[kG], low_[kK], low_[kC], low_[kFh], low_[kFw]),
             high_[kK] - low_[kK], element, false);
}

void BlockedConv::add_to_outputs() {
  const auto element = static_cast<std::uint64_t>(tensors_.layout().element_bytes);
  const bool first = low_[kC] == 0 && low_[kFw] == 0 && low_[kFh] == 0;
  const std::int64_t columns = high_[kX] - low_[kX];
  for (std::int64_t k = low_[kK]; k < high_[kK]; ++k) {
    const std::uint64_t row =
        tensors_.output(low_[kB], low_[kG], k, low_[kY], low_[kX]);
    if (!first) caches_->run(row, columns, element, false);
    caches_->run(row, columns, element, true);
  }
}

}  // namespace memplan::nest
