// Vectors as wide as the machine's registers.
#pragma once

#include <cstdint>
#include <cstring>

#define MEMPLAN_INLINE inline __attribute__((always_inline))
#define MEMPLAN_LAMBDA __attribute__((always_inline))
// Loops over values in registers have to be unrolled before they can be registers.
#if defined(__clang__)
#define MEMPLAN_UNROLL _Pragma("unroll")
#else
#define MEMPLAN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace memplan {

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

}  // namespace memplan
