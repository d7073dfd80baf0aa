// What all kernels of convolutions share: their call, threads, scratch memory, vectors,
// and gathered input.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#define MEMPLAN_INLINE inline __attribute__((always_inline))
#define MEMPLAN_LAMBDA __attribute__((always_inline))
// Loops over values in registers have to be unrolled before they can be registers.
#if defined(__clang__)
#define MEMPLAN_UNROLL _Pragma("unroll")
#else
#define MEMPLAN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace memplan {

// Tasks handed to threads as they ask for them.

template <typename Body>
inline void parallel(int64_t tasks, int threads, const Body& body) {
  if (tasks < threads) threads = static_cast<int>(tasks);
#if defined(_OPENMP)
  if (threads > 1) {
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      body(task);
    return;
  }
#endif
  for (int64_t task = 0; task < tasks; ++task) body(task);
}

// Memory that a thread keeps from call to call, and the machine's cache.

// Grows, never shrinks; 64-byte aligned; huge pages where the system gives them.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  // Room for `count` floats. What was there before is lost if it has to grow.
  float* floats(int64_t count) {
    const size_t wanted = static_cast<size_t>(count) * sizeof(float);
    if (wanted > size_) grow(wanted);
    return static_cast<float*>(data_);
  }

 private:
  static constexpr size_t PAGE = size_t{2} << 20;

  void release() {
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
  }

  void grow(size_t wanted) {
    release();
    const size_t size = (wanted + PAGE - 1) / PAGE * PAGE;
    if (posix_memalign(&data_, PAGE, size) != 0) {
      data_ = nullptr;
      std::fputs("memplan: no memory for a convolution's scratch\n", stderr);
      std::abort();
    }
#if defined(MADV_HUGEPAGE)
    (void)madvise(data_, size, MADV_HUGEPAGE);
#endif
    size_ = size;
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

inline Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

// Hands out pieces of a scratch, each on a cache line of its own: first asked for with
// no memory behind them, then again with it.
class Pieces {
 public:
  explicit Pieces(float* base = nullptr) : base_(base) {}

  template <typename T>
  T* take(int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    used_ += (bytes + 127) / 64 * 16;
    return piece;
  }

  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

// Bytes of a core's second-level cache.
inline int64_t cache_bytes() {
  static const int64_t bytes = [] {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (found >= (128 << 10) && found <= (16 << 20)) return int64_t{found};
#endif
    return int64_t{512} << 10;
  }();
  return bytes;
}

// Vectors as wide as the machine's registers.

#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int REGISTERS = 32;
#else
constexpr int REGISTERS = 16;
#endif

typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float))));
typedef float Unaligned
    __attribute__((vector_size(WIDTH * sizeof(float)), aligned(4), may_alias));

MEMPLAN_INLINE Vector load(const float* from) {
  return *reinterpret_cast<const Unaligned*>(from);
}

MEMPLAN_INLINE void store(float* to, Vector value) {
  *reinterpret_cast<Unaligned*>(to) = value;
}

MEMPLAN_INLINE Vector broadcast(float value) { return value - Vector{}; }

// The first `count` elements; zeros behind them.
MEMPLAN_INLINE Vector load_part(const float* from, int64_t count) {
  if (count >= WIDTH) return load(from);
  float whole[WIDTH] = {};
  for (int64_t i = 0; i < count; ++i) whole[i] = from[i];
  return load(whole);
}

MEMPLAN_INLINE void store_part(float* to, Vector value, int64_t count) {
  if (count >= WIDTH) return store(to, value);
  float whole[WIDTH];
  store(whole, value);
  for (int64_t i = 0; i < count; ++i) to[i] = whole[i];
}

// Whether a lane is NaN.
MEMPLAN_INLINE bool any_nan(Vector value) {
  const auto nan = value != value;
  int64_t words[sizeof(nan) / 8], all = 0;
  std::memcpy(words, &nan, sizeof(nan));
  for (int64_t word : words) all |= word;
  return all != 0;
}

// NaN stays NaN in both, as in torch.
MEMPLAN_INLINE Vector at_least(Vector value, Vector low) {
  return value < low ? low : value;
}

MEMPLAN_INLINE Vector at_most(Vector value, Vector high) {
  return value > high ? high : value;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// One call of a convolution: everything a kernel reads, as the caller lays it out.

// Tensors are channels last: element (image, y, x, channel) of the input lies at
// image * in_image + (y * w + x) * in_pixel + channel. Strides count floats; a pixel
// stride may be wider than the channels, so that a layer reads and writes slices.
struct Convolution {
  const float* in;
  float* out;
  const float* add;      // of the output's shape, or null
  const float* weights;  // as the kernel's own packing has them
  const float* plain;    // dense (k, c, 3, 3): for what Winograd must do again, or null
  const float* factor;   // of the k channels of those, or null: 1
  const float* bias;     // k of them and zeros up to the panels' end, or null
  const float* scale;    // of the c channels that come in, or null: 1
  const float* shift;    // null: 0
  int64_t n, h, w, c, k, oh, ow;
  int64_t kernel_h, kernel_w, stride_h, stride_w;
  int64_t padding_h, padding_w, dilation_h, dilation_w;
  int64_t in_pixel, in_image, out_pixel, out_image, add_pixel, add_image;
  float low, high;  // what the output is clamped to, under CLAMP
  int32_t flags;
  int32_t reserved;
};

enum Flags : int32_t {
  RELU_IN = 1,   // after scale and shift, before the padding
  RELU_OUT = 2,  // after bias and addition
  CLAMP_OUT = 4,
};

inline bool has_prologue(const Convolution& call) {
  return call.scale || call.shift || (call.flags & RELU_IN);
}

// Rows of input brought into a buffer: padded, scaled, shifted and rectified.

// What comes before the padding, for WIDTH channels.
struct Prologue {
  Vector scale = broadcast(1.0f), shift = Vector{};
  bool affine, relu;

  MEMPLAN_INLINE Prologue(const Convolution& call, int64_t channel)
      : affine(call.scale || call.shift), relu(call.flags & RELU_IN) {
    if (call.scale) scale = load_part(call.scale + channel, call.c - channel);
    if (call.shift) shift = load_part(call.shift + channel, call.c - channel);
  }
  MEMPLAN_INLINE Vector operator()(Vector x) const {
    if (affine) x = x * scale + shift;
    return relu ? at_least(x, Vector{}) : x;
  }
};

// Channels of one pixel: copied, or scale * x + shift and then ReLU.
MEMPLAN_INLINE void gather_values(const Convolution& call, const float* from, float* to,
                                  int64_t count) {
  if (!has_prologue(call)) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t i = 0; i < count; i += WIDTH)
    store_part(to + i, Prologue(call, i)(load_part(from + i, count - i)), count - i);
}

inline void zero(float* to, int64_t count) {
  std::memset(to, 0, static_cast<size_t>(count) * sizeof(float));
}

// One row of an image, columns [x, x + columns) of it, of which those outside are
// zeros; so is a row outside. Pixels of the buffer lie `pitch` apart.
inline void gather_row(const Convolution& call, int64_t image, int64_t y, int64_t x,
                       int64_t columns, int64_t pitch, float* to) {
  if (y < 0 || y >= call.h) return zero(to, columns * pitch);
  const int64_t from = x < 0 ? (-x < columns ? -x : columns) : 0;
  int64_t until = call.w - x < columns ? call.w - x : columns;
  if (until < from) until = from;
  zero(to, from * pitch);
  zero(to + until * pitch, (columns - until) * pitch);
  if (from == until) return;
  const float* in = call.in + image * call.in_image + (y * call.w + x) * call.in_pixel;
  if (!has_prologue(call) && call.in_pixel == call.c && pitch == call.c)
    return gather_values(call, in + from * pitch, to + from * pitch,
                         (until - from) * pitch);
  for (int64_t i = from; i < until; ++i)
    gather_values(call, in + i * call.in_pixel, to + i * pitch, call.c);
}

}  // namespace memplan
