// Winograd convolution, depth first: what a block of tiles becomes stays in cache.
#pragma once

#include <algorithm>

#include "conv_parallel.h"
#include "conv_scratch.h"
#include "conv_winograd_tile.h"

namespace memplan {

// A sum is cut after so many channels, and its parts added: smaller rounding errors.
constexpr int64_t SUMMED = 64;

// Tiles cut into blocks, output channels into groups for threads, and into chunks
// whose products stay in cache until they are transformed back.
template <int R>
struct WinogradPlan {
  static constexpr int POINTS = (R + 2) * (R + 2);
  const Convolution& call;
  Panels panels;
  int64_t tiles_y, tiles_x, tiles, block, blocks, groups, chunk;
  int64_t pitch, in_stride, out_pitch, out_stride;

  WinogradPlan(const Convolution& given, int threads) : call(given), panels(given.k) {
    tiles_y = ceil_div(call.oh, R), tiles_x = ceil_div(call.ow, R);
    tiles = call.n * tiles_y * tiles_x;
    pitch = round_up(call.c, WIDTH);
    // Fewer tiles read the weights too often, more of them fall out of cache.
    const int64_t rows = tile_rows(PANEL), most = rows * (call.c > 96 ? 42 : 56) / 14;
    const int64_t budget = cache_bytes() / 2 / (POINTS * 4);  // floats a point
    block = std::min(std::max(budget / pitch, 2 * rows), most);
    blocks = ceil_div(tiles, block);
    if (blocks < 4 * threads) blocks = round_up(blocks, threads);
    block = ceil_div(tiles, blocks);
    groups = 1;
    if (block < rows && threads > 1) {  // too few to be cut
      block = tiles;
      groups = std::min(panels.count, int64_t{threads});
    }
    blocks = ceil_div(tiles, block);
    chunk = std::max(int64_t{1}, budget / (block * PANEL * WIDTH));
    chunk = std::min(chunk, ceil_div(panels.count, groups));
    out_pitch = (chunk * PANEL + 1) * WIDTH;
    in_stride = block * pitch + WIDTH;  // no two points a power of two apart
    out_stride = block * out_pitch + WIDTH;
  }

  // Roughly the input of the tiles of one block, that of its first image.
  Later rows(int64_t task) const {
    const int64_t first = task * block, last = std::min(first + block, tiles) - 1;
    if (task >= blocks || groups > 1 || call.in_pixel > 2 * call.c) return {};
    const Corner a = corner(first), b = corner(last);
    const int64_t end = b.image > a.image ? call.h : std::min(b.y + R + 2, call.h);
    const float* image = call.in + a.image * call.in_image;
    return {image + std::min(a.y + 1, call.h) * call.w * call.in_pixel,
            image + end * call.w * call.in_pixel};
  }

  Corner corner(int64_t tile) const {
    const int64_t row = tile / tiles_x;
    return {row / tiles_y, row % tiles_y * R, tile % tiles_x * R};
  }
};

template <int R>
class WinogradTask {
 public:
  WinogradTask(const WinogradPlan<R>& plan, int64_t task, int threads)
      : plan_(plan), later_(plan.rows(task + threads)) {
    group_ = task % plan.groups;
    first_ = task / plan.groups * plan.block;
    count_ = std::min(plan.block, plan.tiles - first_);
    Pieces measure;
    lay_out(measure);
    Pieces pieces(thread_scratch().floats(measure.used()));
    lay_out(pieces);
  }

  void run() {
    for (int64_t t = 0; t < count_; ++t) {
      rows_in_[t] = in_ + t * plan_.pitch;
      rows_out_[t] = out_ + t * plan_.out_pitch;
      tile_in<R>(plan_.call, plan_.corner(first_ + t), in_ + t * plan_.pitch,
                 plan_.in_stride);
    }
    const int64_t first = group_ * plan_.panels.count / plan_.groups;
    const int64_t last = (group_ + 1) * plan_.panels.count / plan_.groups;
    for (int64_t panel = first; panel < last; panel += plan_.chunk)
      run_chunk(panel, std::min(panel + plan_.chunk, last));
  }

 private:
  void run_chunk(int64_t first, int64_t last) {
    for (int point = 0; point < plan_.POINTS; ++point)
      for (int64_t panel = first; panel < last; ++panel) {
        const bool turn = panel + 1 == last;
        multiply(point, panel, first, weights(point + turn, turn ? first : panel + 1));
      }
    const Panels& panels = plan_.panels;
    const int64_t from = panels.first_column(first);
    const int64_t until =
        panels.first_column(last - 1) + panels.vectors(last - 1) * WIDTH;
    for (int64_t t = 0; t < count_; ++t)
      tile_out<R>(plan_.call, plan_.corner(first_ + t), from,
                  std::min(until, plan_.call.k), rows_out_[t], plan_.out_stride);
  }

  const float* weights(int point, int64_t panel) const {
    const int64_t c = plan_.call.c, width = plan_.panels.vectors(panel) * WIDTH;
    return plan_.call.weights + plan_.panels.offset(panel, c * plan_.POINTS) +
           point * c * width;
  }

  void multiply(int point, int64_t panel, int64_t first, const float* next) {
    const Panels& panels = plan_.panels;
    const int64_t c = plan_.call.c, vectors = panels.vectors(panel);
    const int64_t column = point * plan_.out_stride + panels.first_column(panel) -
                           panels.first_column(first);
    const int64_t parts = ceil_div(c, SUMMED);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t start = part * c / parts, end = (part + 1) * c / parts;
      const Segment segment{point * plan_.in_stride + start, end - start};
      Work work{};
      work.in = rows_in_, work.out = rows_out_, work.add = part ? rows_out_ : nullptr;
      work.segments = &segment, work.count = 1;
      work.weights = weights(point, panel) + start * vectors * WIDTH;
      const float* behind = work.weights + (end - start) * vectors * WIDTH;
      work.ahead = part + 1 < parts ? behind : next;
      work.depth = end - start, work.later = &later_;
      work.start = ZEROS;
      work.column = column, work.columns = vectors * WIDTH;
      run_panel(work, static_cast<int>(vectors), count_);
    }
  }

  void lay_out(Pieces& pieces) {
    in_ = pieces.take<float>(plan_.POINTS * plan_.in_stride);
    out_ = pieces.take<float>(plan_.POINTS * plan_.out_stride);
    rows_in_ = pieces.take<const float*>(plan_.block);
    rows_out_ = pieces.take<float*>(plan_.block);
  }

  const WinogradPlan<R>& plan_;
  Later later_;
  int64_t group_, first_, count_;
  float *in_, *out_;
  const float** rows_in_;
  float** rows_out_;
};

template <int R>
inline void winograd(const Convolution& call, int threads) {
  const WinogradPlan<R> plan(call, threads);
  parallel(plan.blocks * plan.groups, threads,
           [&](int64_t task) { WinogradTask<R>(plan, task, threads).run(); });
}

}  // namespace memplan
