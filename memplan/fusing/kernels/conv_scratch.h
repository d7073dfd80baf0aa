// Memory that a thread keeps from call to call, and the machine's cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace memplan {

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

}  // namespace memplan
