// Vectors of float, on any machine: loads, stores, maxima that mind NaN, bfloat16.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

namespace memplan {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

// Unrolls the loop that follows, where it has a constant number of rounds.
#if defined(__clang__)
#define MEMPLAN_UNROLL _Pragma("unroll")
#else
#define MEMPLAN_UNROLL _Pragma("GCC unroll 64")
#endif
#define MEMPLAN_INLINE inline __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef float LooseVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint16_t LooseHalves
    __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

struct Bfloat16 {
  uint16_t bits;
};

MEMPLAN_INLINE Vec splat(float x) { return x - Vec{}; }  // -0 stays -0
MEMPLAN_INLINE Ints bits(Vec x) { return (Ints)x; }
MEMPLAN_INLINE Vec floats(Ints x) { return (Vec)x; }
MEMPLAN_INLINE Vec magnitude(Vec x) { return floats(bits(x) & 0x7fffffff); }

// The larger or smaller of two; b where either is NaN.
MEMPLAN_INLINE Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__) && defined(__clang__)
  return __builtin_ia32_maxps512(a, b, 4);
#elif defined(__AVX512F__)
  return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
#elif defined(__AVX__)
  return __builtin_ia32_maxps256(a, b);
#elif defined(__SSE__)
  return __builtin_ia32_maxps(a, b);
#else
  return a > b ? a : b;
#endif
}

MEMPLAN_INLINE Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__) && defined(__clang__)
  return __builtin_ia32_minps512(a, b, 4);
#elif defined(__AVX512F__)
  return __builtin_ia32_minps512_mask(a, b, a, -1, 4);
#elif defined(__AVX__)
  return __builtin_ia32_minps256(a, b);
#elif defined(__SSE__)
  return __builtin_ia32_minps(a, b);
#else
  return a < b ? a : b;
#endif
}

// The larger of two; NaN where either is NaN.
MEMPLAN_INLINE Vec larger_or_nan(Vec a, Vec b) {
  const Vec found = larger(a, b);  // b where b is NaN
  return a != a ? a : found;
}

MEMPLAN_INLINE Vec first_lanes(Vec x, int lanes, Vec others) {
  Ints index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index < lanes ? x : others;
}

MEMPLAN_INLINE Vec load(const float* p) { return *(const LooseVec*)p; }
MEMPLAN_INLINE void store(float* p, Vec x) { *(LooseVec*)p = x; }

MEMPLAN_INLINE Vec widened(Halves x) {
  return (Vec)(__builtin_convertvector(x, Words) << 16);
}

// Rounded to nearest, ties to even; a NaN stays one.
MEMPLAN_INLINE Halves narrowed(Vec x) {
  const Words word = (Words)x;
  const Words rounded = word + 0x7fff + ((word >> 16) & 1);
  const Words chosen = x != x ? (word | 0x400000) : rounded;
  return __builtin_convertvector(chosen >> 16, Halves);
}

MEMPLAN_INLINE Vec load(const Bfloat16* p) { return widened(*(const LooseHalves*)p); }
MEMPLAN_INLINE void store(Bfloat16* p, Vec x) { *(LooseHalves*)p = narrowed(x); }

// The first lanes alone, for what ends within a vector; the others are read as 0.
MEMPLAN_INLINE Vec load_some(const float* p, int lanes) {
#if defined(__AVX512F__)
  return __builtin_ia32_loadups512_mask(p, Vec{}, (uint16_t)((1u << lanes) - 1));
#else
  Vec x{};
  for (int i = 0; i < lanes; ++i) x[i] = p[i];
  return x;
#endif
}

MEMPLAN_INLINE void store_some(float* p, Vec x, int lanes) {
#if defined(__AVX512F__)
  __builtin_ia32_storeups512_mask(p, x, (uint16_t)((1u << lanes) - 1));
#else
  for (int i = 0; i < lanes; ++i) p[i] = x[i];
#endif
}

MEMPLAN_INLINE Vec load_some(const Bfloat16* p, int lanes) {
  Halves x{};
  for (int i = 0; i < lanes; ++i) x[i] = p[i].bits;
  return widened(x);
}

MEMPLAN_INLINE void store_some(Bfloat16* p, Vec x, int lanes) {
  const Halves narrow = narrowed(x);
  for (int i = 0; i < lanes; ++i) p[i].bits = narrow[i];
}

template <class T>
MEMPLAN_INLINE Vec load_lanes(const T* p, int lanes) {
  return lanes == kLanes ? load(p) : load_some(p, lanes);
}

template <class T>
MEMPLAN_INLINE void store_lanes(T* p, Vec x, int lanes) {
  if (lanes == kLanes) {
    store(p, x);
  } else {
    store_some(p, x, lanes);
  }
}

// Every second float from p on.
MEMPLAN_INLINE Vec load_even(const float* p) {
  const Vec low = load(p), high = load(p + kLanes);
#if defined(__clang__) && defined(__AVX512F__)
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                 24, 26, 28, 30);
#elif defined(__clang__) && defined(__AVX__)
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
#elif defined(__clang__)
  return __builtin_shufflevector(low, high, 0, 2, 4, 6);
#else
  Ints index;
  for (int i = 0; i < kLanes; ++i) index[i] = 2 * i;
  return __builtin_shuffle(low, high, index);
#endif
}

MEMPLAN_INLINE Vec load_every(const float* p, int64_t step, int lanes) {
  Vec x{};
  for (int i = 0; i < lanes; ++i) x[i] = p[i * step];
  return x;
}

inline float largest_lane(Vec x) {
  float found = x[0];
  for (int i = 1; i < kLanes; ++i) found = found > x[i] ? found : x[i];
  return found;
}

}  // namespace memplan
