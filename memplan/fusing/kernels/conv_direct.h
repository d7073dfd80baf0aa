// Convolution as an implicit product of matrices, one block of output at a time.
#pragma once

#include <algorithm>

#include "conv_call.h"
#include "conv_panel.h"

namespace memplan {

// A box of output pixels of some images, as large as its input fits in cache.
struct Block {
  int64_t images, rows, columns;
};

// A convolution cut into blocks, and its output channels into groups of panels.
struct DirectPlan {
  Convolution call;
  Panels panels;
  Block block;
  int64_t groups;
  int64_t blocks_n, blocks_y, blocks_x;
  bool in_place;  // the input is read where it lies
  int64_t pitch, in_rows, in_columns;
  int64_t depth;

  DirectPlan(const Convolution& given, int threads) : call(given), panels(given.k) {
    flatten();
    in_place = !has_prologue(call) && inside();
    pitch = in_place ? call.in_pixel : call.c;
    depth = call.kernel_h * call.kernel_w * call.c;
    choose_block(threads);
    in_rows = reach(block.rows, call.stride_h, call.kernel_h, call.dilation_h);
    in_columns = reach(block.columns, call.stride_w, call.kernel_w, call.dilation_w);
  }

  static int64_t reach(int64_t out, int64_t stride, int64_t kernel, int64_t dilation) {
    return (out - 1) * stride + (kernel - 1) * dilation + 1;
  }

  int64_t tasks() const { return blocks_n * blocks_y * blocks_x * groups; }
  int64_t output_bytes() const { return call.n * call.oh * call.ow * call.k * 4; }
  // The rows of input of one task, without the halo behind them.
  Later rows(int64_t task) const {
    if (task >= tasks() || groups > 1 || call.in_pixel > 2 * call.c) return {};
    const int64_t x = task % blocks_x * block.columns * call.stride_w;
    task /= blocks_x;
    const int64_t y = task % blocks_y * block.rows * call.stride_h;
    const int64_t rows = std::min(block.rows * call.stride_h, call.h - y);
    const int64_t image = task / blocks_y * block.images;
    const int64_t images = std::min(block.images, call.n - image);
    const float* from =
        call.in + image * call.in_image + (y * call.w + x) * call.in_pixel;
    if (blocks_x > 1) {
      const int64_t columns = std::min(block.columns * call.stride_w, call.w - x);
      return {from, from + columns * call.in_pixel};
    }
    return {from, from + (images - 1) * call.in_image + rows * call.w * call.in_pixel};
  }
  int64_t pixels() const { return block.images * block.rows * block.columns; }
  int64_t buffer() const {
    return in_place ? 0 : block.images * in_rows * in_columns * pitch + WIDTH;
  }

 private:
  // Whether no tap is of padding.
  bool inside() const {
    return call.padding_h == 0 && call.padding_w == 0 &&
           reach(call.oh, call.stride_h, call.kernel_h, call.dilation_h) <= call.h &&
           reach(call.ow, call.stride_w, call.kernel_w, call.dilation_w) <= call.w;
  }

  // Where neither kernel nor padding ties pixels together, they are one long row.
  void flatten() {
    if (call.kernel_h * call.kernel_w * call.stride_h * call.stride_w != 1) return;
    if (!inside()) return;
    const int64_t plane = call.h * call.w;
    const auto dense = [&](int64_t image, int64_t pixel) {
      return image == plane * pixel;
    };
    if (call.n == 1 || (dense(call.in_image, call.in_pixel) &&
                        dense(call.out_image, call.out_pixel) &&
                        (!call.add || dense(call.add_image, call.add_pixel)))) {
      call.w = call.ow = call.n * plane;
      call.n = 1;
    } else {
      call.w = call.ow = plane;
    }
    call.h = call.oh = 1;
  }

  int64_t input_bytes(const Block& b) const {
    return b.images * reach(b.rows, call.stride_h, call.kernel_h, call.dilation_h) *
           reach(b.columns, call.stride_w, call.kernel_w, call.dilation_w) * call.c * 4;
  }

  void choose_block(int threads) {
    const int64_t weights = panels.padded() * depth * 4, cache = cache_bytes();
    const int64_t wanted = weights > cache / 4 ? 448 : 224;
    const int64_t room = weights > cache / 4 ? cache / 2 : cache / 4;
    const auto fits = [&](const Block& b) {
      return b.images * b.rows * b.columns <= wanted && input_bytes(b) <= room;
    };
    block = {1, 1, call.ow};
    while (!fits(block) && block.columns > 56)
      block.columns = std::max(int64_t{56}, block.columns / 2);
    block.columns = even(call.ow, block.columns);
    if (block.columns == call.ow) {
      while (block.rows < call.oh && fits({1, block.rows + 1, call.ow})) ++block.rows;
      block.rows = even(call.oh, block.rows);
    }
    if (block.rows == call.oh && block.columns == call.ow) {
      while (block.images < call.n && fits({block.images + 1, call.oh, call.ow}))
        ++block.images;
      block.images = even(call.n, block.images);
    }
    count();
    const int64_t blocks = tasks();
    if (threads > 1 && blocks % threads && blocks < 4 * threads)
      groups = std::min(panels.count, int64_t{threads});
  }

  static int64_t even(int64_t all, int64_t most) {
    return ceil_div(all, ceil_div(all, most));
  }

  void count() {
    groups = 1;
    blocks_n = ceil_div(call.n, block.images);
    blocks_y = ceil_div(call.oh, block.rows);
    blocks_x = ceil_div(call.ow, block.columns);
  }
};

// What a thread holds while it works on a block.
struct DirectScratch {
  float* input;
  const float** in;
  float** out;
  const float** add;
  Segment* segments;

  explicit DirectScratch(const DirectPlan& plan) {
    Pieces measure;
    lay_out(plan, measure);
    Pieces pieces(thread_scratch().floats(measure.used()));
    lay_out(plan, pieces);
  }

 private:
  void lay_out(const DirectPlan& plan, Pieces& pieces) {
    input = pieces.take<float>(plan.buffer());
    in = pieces.take<const float*>(plan.pixels());
    out = pieces.take<float*>(plan.pixels());
    add = pieces.take<const float*>(plan.pixels());
    segments = pieces.take<Segment>(plan.call.kernel_h * plan.call.kernel_w);
  }
};

class DirectTask {
 public:
  DirectTask(const DirectPlan& plan, int64_t task, int threads)
      : plan_(plan),
        call_(plan.call),
        scratch_(plan),
        later_(plan.rows(task + threads)) {
    group_ = task % plan.groups;
    task /= plan.groups;
    x_ = task % plan.blocks_x * plan.block.columns;
    task /= plan.blocks_x;
    y_ = task % plan.blocks_y * plan.block.rows;
    image_ = task / plan.blocks_y * plan.block.images;
    images_ = std::min(plan.block.images, call_.n - image_);
    rows_ = std::min(plan.block.rows, call_.oh - y_);
    columns_ = std::min(plan.block.columns, call_.ow - x_);
  }

  void run() {
    if (!plan_.in_place) gather();
    list_pixels();
    const int64_t segments = list_segments();
    const Panels& panels = plan_.panels;
    const int64_t first = group_ * panels.count / plan_.groups;
    const int64_t last = (group_ + 1) * panels.count / plan_.groups;
    // A long sum over one segment is cut, so that every piece of the weights stays in
    // cache for all tiles; the sums so far wait in the output.
    const int64_t pieces = segments == 1 ? ceil_div(plan_.depth, LONGEST) : 1;
    for (int64_t panel = first; panel < last; ++panel)
      for (int64_t piece = 0; piece < pieces; ++piece)
        run_piece(panel, segments, piece, pieces);
  }

 private:
  static constexpr int64_t LONGEST = 2560;

  void run_piece(int64_t panel, int64_t segments, int64_t piece, int64_t pieces) {
    const Panels& panels = plan_.panels;
    const int64_t from = piece * plan_.depth / pieces;
    const int64_t until = (piece + 1) * plan_.depth / pieces;
    const int64_t column = panels.first_column(panel);
    const int64_t width = panels.vectors(panel) * WIDTH;
    const Segment part{scratch_.segments[0].offset + from, until - from};
    Work work{};
    work.in = scratch_.in, work.out = scratch_.out;
    work.add = call_.add ? scratch_.add : nullptr;
    work.segments = pieces > 1 ? &part : scratch_.segments, work.count = segments;
    work.weights = call_.weights + panels.offset(panel, plan_.depth) + from * width;
    work.depth = until - from, work.later = &later_;
    work.ahead = work.weights + work.depth * width;
    work.start = call_.bias ? call_.bias + column : ZEROS;
    if (piece > 0) work.start = ZEROS, work.add = scratch_.out;
    work.column = column, work.columns = call_.k - column;
    work.fetches_out = plan_.depth <= 64 && plan_.output_bytes() > 2 * cache_bytes();
    if (piece + 1 == pieces) bound(work, call_);
    run_panel(work, panels.vectors(panel), images_ * rows_ * columns_);
  }

  void gather() {
    const int64_t y = y_ * call_.stride_h - call_.padding_h;
    const int64_t x = x_ * call_.stride_w - call_.padding_w;
    float* to = scratch_.input;
    for (int64_t i = 0; i < images_; ++i)
      for (int64_t row = 0; row < plan_.in_rows; ++row) {
        gather_row(call_, image_ + i, y + row, x, plan_.in_columns, plan_.pitch, to);
        to += plan_.in_columns * plan_.pitch;
      }
  }

  void list_pixels() {
    const int64_t width = plan_.in_place ? call_.w : plan_.in_columns;
    const int64_t image =
        plan_.in_place ? call_.in_image : plan_.in_rows * width * plan_.pitch;
    const float* base = scratch_.input;
    if (plan_.in_place)
      base = call_.in + image_ * image +
             (y_ * call_.stride_h * width + x_ * call_.stride_w) * plan_.pitch;
    int64_t p = 0;
    for (int64_t i = 0; i < images_; ++i)
      for (int64_t row = 0; row < rows_; ++row) {
        const float* in = base + i * image + row * call_.stride_h * width * plan_.pitch;
        const int64_t pixel = (y_ + row) * call_.ow + x_;
        for (int64_t column = 0; column < columns_; ++column, ++p) {
          scratch_.in[p] = in + column * call_.stride_w * plan_.pitch;
          scratch_.out[p] = call_.out + (image_ + i) * call_.out_image +
                            (pixel + column) * call_.out_pixel;
          if (call_.add)
            scratch_.add[p] = call_.add + (image_ + i) * call_.add_image +
                              (pixel + column) * call_.add_pixel;
        }
      }
  }

  // The taps of the kernel; a whole row of them where they lie together.
  int64_t list_segments() {
    const int64_t width = plan_.in_place ? call_.w : plan_.in_columns;
    const bool together = call_.dilation_w == 1 && plan_.pitch == call_.c;
    const int64_t taps = together ? 1 : call_.kernel_w;
    int64_t s = 0;
    for (int64_t y = 0; y < call_.kernel_h; ++y)
      for (int64_t x = 0; x < taps; ++x)
        scratch_.segments[s++] = {
            (y * call_.dilation_h * width + x * call_.dilation_w) * plan_.pitch,
            together ? call_.kernel_w * call_.c : call_.c};
    return s;
  }

  const DirectPlan& plan_;
  const Convolution& call_;
  DirectScratch scratch_;
  Later later_;
  int64_t group_, image_, y_, x_, images_, rows_, columns_;
};

inline void direct(const Convolution& call, int threads) {
  const DirectPlan plan(call, threads);
  parallel(plan.tasks(), threads,
           [&](int64_t task) { DirectTask(plan, task, threads).run(); });
}

}  // namespace memplan
