// Winograd convolution, depth first: what a block of tiles becomes stays in cache.
#pragma once

#include <algorithm>
#include <mutex>

#include "conv_call.h"
#include "conv_panel.h"

namespace memplan {

// Winograd's minimal filtering F(R, 3) in one dimension (Lavin and Gray 2016).

// R results of N = R + 2 values: A^T ((G g) * (B^T d)). Each transform is in place.
template <int R>
struct Filtering;

// At the points 0, 1, -1 and infinity.
template <>
struct Filtering<2> {
  static constexpr double G[4][3] = {
      {1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};

  static MEMPLAN_INLINE void input(Vector (&d)[4]) {
    const Vector first = d[0] - d[2], last = d[3] - d[1];
    const Vector sum = d[2] + d[1], difference = d[2] - d[1];
    d[0] = first, d[1] = sum, d[2] = difference, d[3] = last;
  }

  static MEMPLAN_INLINE void output(Vector (&m)[4]) {
    const Vector odd = m[1] - m[2];
    m[0] += m[1] + m[2];
    m[1] = odd + m[3];
  }
};

// At 0, +-a, +-1/a and infinity, a = sqrt(1/2): rounding errors are a quarter of those
// at the usual 0, +-1, +-2, and the products of the points remain simple numbers.
template <>
struct Filtering<4> {
  static constexpr double A = 0.70710678118654752440;
  static constexpr double G[6][3] = {
      {1, 0, 0},
      {-2.0 / 3, -2.0 / 3 * A, -1.0 / 3},
      {-2.0 / 3, 2.0 / 3 * A, -1.0 / 3},
      {1.0 / 6, A / 3, 1.0 / 3},
      {1.0 / 6, -A / 3, 1.0 / 3},
      {0, 0, 1},
  };

  static MEMPLAN_INLINE void input(Vector (&d)[6]) {
    const Vector first = d[0] - 2.5f * d[2] + d[4];
    const Vector last = d[1] - 2.5f * d[3] + d[5];
    const Vector even = d[4] - 2.0f * d[2];
    const Vector odd = static_cast<float>(A) * (d[3] - 2.0f * d[1]);
    const Vector even2 = d[4] - 0.5f * d[2];
    const Vector odd2 = static_cast<float>(2 * A) * (d[3] - 0.5f * d[1]);
    d[0] = first, d[5] = last;
    d[1] = even + odd, d[2] = even - odd;
    d[3] = even2 + odd2, d[4] = even2 - odd2;
  }

  static MEMPLAN_INLINE void output(Vector (&m)[6]) {
    const Vector sum = m[1] + m[2], sum2 = m[3] + m[4];
    const Vector odd = static_cast<float>(A) * (m[1] - m[2]);
    const Vector odd2 = static_cast<float>(2 * A) * (m[3] - m[4]);
    m[0] += sum + sum2;
    m[1] = odd + odd2;
    m[2] = 0.5f * sum + 2.0f * sum2;
    m[3] = 0.5f * odd + 2.0f * odd2 + m[5];
  }
};

// One tile of a Winograd convolution: in, out, and again where it was not finite.

// R x R pixels of output, from row y and column x of an image.
struct Corner {
  int64_t image, y, x;
};

// B^T d B of every channel; result p of channel c goes to to[p * stride + c]. Behind
// the channels there is room for a vector.
template <int R>
inline void tile_in(const Convolution& call, const Corner& at, float* to,
                    int64_t stride) {
  constexpr int N = R + 2;
  const float* pixel[N][N];
  for (int y = 0; y < N; ++y)
    for (int x = 0; x < N; ++x) {
      const int64_t row = at.y + y - call.padding_h, column = at.x + x - call.padding_w;
      const bool inside = row >= 0 && row < call.h && column >= 0 && column < call.w;
      pixel[y][x] = inside ? call.in + at.image * call.in_image +
                                 (row * call.w + column) * call.in_pixel
                           : nullptr;
    }
  const bool changed = has_prologue(call);
  for (int64_t c = 0; c < call.c; c += WIDTH) {
    const Prologue prologue(call, c);
    Vector middle[N][N];
    for (int x = 0; x < N; ++x) {
      Vector d[N];
      MEMPLAN_UNROLL
      for (int y = 0; y < N; ++y) {
        const float* from = pixel[y][x];
        d[y] = Vector{};
        if (!from) continue;
        d[y] = load_part(from + c, call.c - c);
        if (changed) d[y] = prologue(d[y]);
      }
      Filtering<R>::input(d);
      MEMPLAN_UNROLL
      for (int y = 0; y < N; ++y) middle[y][x] = d[y];
    }
    for (int y = 0; y < N; ++y) {
      Filtering<R>::input(middle[y]);
      MEMPLAN_UNROLL
      for (int x = 0; x < N; ++x) store(to + (y * N + x) * stride + c, middle[y][x]);
    }
  }
}

MEMPLAN_INLINE void finish_pixel(const Convolution& call, const Corner& at,
                                 int64_t column, Vector x) {
  const int64_t rest = call.k - column, pixel = at.y * call.ow + at.x;
  if (call.bias) x += load(call.bias + column);
  if (call.add)
    x += load_part(
        call.add + at.image * call.add_image + pixel * call.add_pixel + column, rest);
  if (call.flags & RELU_OUT) x = at_least(x, Vector{});
  if (call.flags & CLAMP_OUT)
    x = at_most(at_least(x, broadcast(call.low)), broadcast(call.high));
  store_part(call.out + at.image * call.out_image + pixel * call.out_pixel + column, x,
             rest);
}

// Weights as "direct" has them, packed when a call first needs them: hardly any does.
class Direct {
 public:
  explicit Direct(const Convolution& call) : call_(call) {}

  const float* weights() {
    std::call_once(once_, [this] {
      const int64_t count = Panels(call_.k).padded() * call_.c * 9;
      weights_ = scratch_.floats(count);
      pack_direct({call_.plain, weights_, call_.k, call_.c, 3, 3}, 1);
    });
    return weights_;
  }

 private:
  const Convolution& call_;
  std::once_flag once_;
  Scratch scratch_;
  float* weights_ = nullptr;
};

// A vector of columns of one pixel as "direct" computes it, so that what is not finite
// reaches those outputs alone that see it.
__attribute__((noinline)) inline Vector direct_pixel(const Convolution& call,
                                                     Direct& direct, const Corner& at,
                                                     int64_t column) {
  const Panels panels(call.k);
  int64_t panel = column / (PANEL * WIDTH);
  if (panel >= panels.count) panel = panels.count - 1;
  const int64_t width = panels.vectors(panel) * WIDTH;
  const float* weights = direct.weights() + panels.offset(panel, 9 * call.c) +
                         (column - panels.first_column(panel));
  Vector sum{};
  for (int64_t tap = 0; tap < 9; ++tap) {
    const int64_t y = at.y + tap / 3 - call.padding_h;
    const int64_t x = at.x + tap % 3 - call.padding_w;
    if (y < 0 || y >= call.h || x < 0 || x >= call.w) continue;
    const float* in =
        call.in + at.image * call.in_image + (y * call.w + x) * call.in_pixel;
    for (int64_t c = 0; c < call.c; ++c) {
      float value = in[c];
      if (call.scale) value *= call.scale[c];
      if (call.shift) value += call.shift[c];
      if ((call.flags & RELU_IN) && value < 0.0f) value = 0.0f;
      sum += broadcast(value) * load(weights + (tap * call.c + c) * width);
    }
  }
  if (call.factor) sum *= load_part(call.factor + column, call.k - column);
  return sum;
}

// A^T m A of columns [first, last), and what follows; m of point p and column k lies at
// from[p * stride + k - first].
template <int R>
inline void tile_out(const Convolution& call, Direct& direct, const Corner& at,
                     int64_t first, int64_t last, const float* from, int64_t stride) {
  constexpr int N = R + 2;
  const int rows = static_cast<int>(call.oh - at.y < R ? call.oh - at.y : R);
  const int columns = static_cast<int>(call.ow - at.x < R ? call.ow - at.x : R);
  for (int64_t k = first; k < last; k += WIDTH, from += WIDTH) {
    Vector middle[R][N], bad{};
    for (int x = 0; x < N; ++x) {
      Vector m[N];
      MEMPLAN_UNROLL
      for (int y = 0; y < N; ++y) m[y] = load(from + (y * N + x) * stride);
      Filtering<R>::output(m);
      MEMPLAN_UNROLL
      for (int y = 0; y < R; ++y) middle[y][x] = m[y];
    }
    for (int y = 0; y < R; ++y) {
      Filtering<R>::output(middle[y]);
      MEMPLAN_UNROLL
      for (int x = 0; x < R; ++x) bad += middle[y][x] * 0.0f;
    }
    const bool again = call.plain && any_nan(bad);
    for (int y = 0; y < rows; ++y)
      for (int x = 0; x < columns; ++x) {
        const Corner pixel{at.image, at.y + y, at.x + x};
        finish_pixel(call, pixel, k,
                     again ? direct_pixel(call, direct, pixel, k) : middle[y][x]);
      }
  }
}

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
  WinogradTask(const WinogradPlan<R>& plan, Direct& direct, int64_t task, int threads)
      : plan_(plan), direct_(direct), later_(plan.rows(task + threads)) {
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
      tile_out<R>(plan_.call, direct_, plan_.corner(first_ + t), from,
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
  Direct& direct_;
  Later later_;
  int64_t group_, first_, count_;
  float *in_, *out_;
  const float** rows_in_;
  float** rows_out_;
};

template <int R>
inline void winograd(const Convolution& call, int threads) {
  const WinogradPlan<R> plan(call, threads);
  Direct direct(call);
  parallel(plan.blocks * plan.groups, threads, [&](int64_t task) {
    WinogradTask<R>(plan, direct, task, threads).run();
  });
}

// Weights of a 3x3 convolution in Winograd's domain: a matrix of panels a point.

// G g G^T of `width` kernels at once; `to` has a row of the width for each result,
// `stride` apart.
template <int R>
inline void transform_kernels(const double (&g)[9][WIDEST * WIDTH], int64_t width,
                              float* to, int64_t stride) {
  constexpr int N = R + 2;
  const auto& G = Filtering<R>::G;
  for (int y = 0; y < N; ++y)
    for (int x = 0; x < N; ++x) {
      float* row = to + (y * N + x) * stride;
      for (int64_t j = 0; j < width; ++j) {
        double sum = 0;
        for (int a = 0; a < 3; ++a)
          for (int b = 0; b < 3; ++b) sum += G[y][a] * G[x][b] * g[a * 3 + b][j];
        row[j] = static_cast<float>(sum);
      }
    }
}

// Panel by panel, point by point, channel by channel: a panel's width.
template <int R>
inline void pack_winograd(const Packing& job, int threads) {
  constexpr int POINTS = (R + 2) * (R + 2);
  const Panels panels(job.k);
  use_huge_pages(job, panels.padded() * job.c * POINTS);
  constexpr int64_t CHANNELS = 16;
  const int64_t chunks = ceil_div(job.c, CHANNELS);
  parallel(panels.count * chunks, threads, [&](int64_t task) {
    const int64_t panel = task / chunks, start = task % chunks * CHANNELS;
    const int64_t end = start + CHANNELS < job.c ? start + CHANNELS : job.c;
    const int64_t width = panels.vectors(panel) * WIDTH;
    const int64_t column = panels.first_column(panel);
    float* to = job.to + panels.offset(panel, job.c * POINTS);
    double g[9][WIDEST * WIDTH] = {};
    for (int64_t c = start; c < end; ++c) {
      for (int64_t j = 0; j < width && column + j < job.k; ++j)
        for (int t = 0; t < 9; ++t)
          g[t][j] = job.from[((column + j) * job.c + c) * 9 + t];
      transform_kernels<R>(g, width, to + c * width, job.c * width);
    }
  });
}

}  // namespace memplan
