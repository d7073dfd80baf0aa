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

// Functions of element-wise operations on vectors, within about two units in the last
// place; NaN gives NaN, and infinities give what the C library's functions give.
// Coefficients are least-maximum fits, but for those of exp, which are Taylor's.

MEMPLAN_INLINE Vec choose(Ints yes, Vec one, Vec other) { return yes ? one : other; }

inline float infinity() { return __builtin_inff(); }
inline float not_a_number() { return __builtin_nanf(""); }

MEMPLAN_INLINE Vec larger(float a, Vec x) { return larger(splat(a), x); }

MEMPLAN_INLINE Vec clamp(Vec x, float low, float high) {
  return smaller(splat(high), larger(low, x));  // NaN stays NaN
}

// x = n ln 2 + r, |r| <= ln 2 / 2; x within what exp has a finite result for, or near.
MEMPLAN_INLINE Vec reduced(Vec x, Ints& n) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const Vec sum = x * 1.44269504f + magic;
  n = bits(sum) - 0x4b400000;
  const Vec whole = sum - magic;
  return (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
}

// (exp(r) - 1 - r) / r^2
MEMPLAN_INLINE Vec exp_rest(Vec r) {
  Vec p = r * 1.98412698e-4f + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 0.166666667f;
  return p * r + 0.5f;
}

MEMPLAN_INLINE Vec power_of_two(Ints n) { return floats((n + 127) << 23); }

MEMPLAN_INLINE Vec exp(Vec x) {
  Ints n;
  const Vec r = reduced(clamp(x, -104.0f, 89.0f), n);
  const Vec near = exp_rest(r) * (r * r) + r + 1.0f;
  const Ints half = n >> 1;  // in two parts, for subnormal results and large ones
  return near * power_of_two(half) * power_of_two(n - half);
}

// For x <= 0.
MEMPLAN_INLINE Vec expm1(Vec x) {
  Ints n;
  const Vec r = reduced(clamp(x, -80.0f, 0.0f), n);
  const Vec scale = power_of_two(n);
  return (exp_rest(r) * (r * r) + r) * scale + (scale - 1.0f);
}

MEMPLAN_INLINE Vec tanh(Vec x) {
  const Vec size = magnitude(x), z = x * x;
  Vec p = z * -5.717036562e-03f + 2.065057900e-02f;
  p = p * z - 5.374349526e-02f;
  p = p * z + 1.333149125e-01f;
  p = p * z - 3.333328392e-01f;
  const Vec small = p * z * x + x;
  const Vec large = 1.0f - 2.0f / (exp(size + size) + 1.0f);
  const Vec signed_large = floats(bits(large) | (bits(x) & INT32_MIN));
  return size < 0.625f ? small : signed_large;
}

MEMPLAN_INLINE Vec erf(Vec x) {
  const Vec size = magnitude(x), z = x * x;
  Vec p = z * -9.641517759e-06f + 1.125694841e-04f;
  p = p * z - 8.482828902e-04f;
  p = p * z + 5.220945436e-03f;
  p = p * z - 2.686540004e-02f;
  p = p * z + 1.128378197e-01f;
  p = p * z - 3.761263843e-01f;
  p = p * z + 1.128379167f;
  const Vec t = 1.0f / (size * 0.5f + 1.0f);
  Vec q = t * 6.652407882e-03f - 2.540866153e-01f;
  q = q * t + 6.705463031e-01f;
  q = q * t - 9.065611660e-02f;
  q = q * t + 4.081661926e-01f;
  q = q * t + 2.570792342e-01f;
  q = q * t + 2.073645046e-03f;
  const Vec far = 1.0f - exp(-z) * q;
  const Vec large = size > 4.2f ? splat(1.0f) : far;
  const Vec signed_large = floats(bits(large) | (bits(x) & INT32_MIN));
  return size < 1.0f ? p * x : choose(x != x, x, signed_large);
}

// log(1 + u) for u >= 0.
MEMPLAN_INLINE Vec log1p(Vec u) {
  const Vec y = u + 1.0f;
  // y = 2^n (1 + m), with 1 + m from sqrt(1/2) to sqrt(2)
  const Ints n = (bits(y) - 0x3f3504f3) >> 23;
  const Vec m = floats(bits(y) - (n << 23)) - 1.0f;
  Vec p = m * -7.623060740e-02f + 1.290550302e-01f;
  p = p * m - 1.324298114e-01f;
  p = p * m + 1.418163495e-01f;
  p = p * m - 1.660905665e-01f;
  p = p * m + 2.000198459e-01f;
  p = p * m - 2.500158481e-01f;
  p = p * m + 3.333332551e-01f;
  p = p * m - 4.999998831e-01f;
  const Vec log = __builtin_convertvector(n, Vec) * 0.693147181f + (p * (m * m) + m);
  const Vec found = log * (u / (y - 1.0f));  // what rounding 1 + u lost
  const Vec far = choose(u > 3e38f, u, found);
  return y == 1.0f ? u : choose(u != u, u, far);
}

MEMPLAN_INLINE Vec mish(Vec x) {
  const Vec e = exp(smaller(splat(20.0f), x)), product = e * (e + 2.0f);
  return x * (product / (product + 2.0f));
}

// How large values may get: what is at most `most` in magnitude, by an operation.
inline float size(float x) { return x < 0.0f ? -x : x; }

inline Vec clamped(Vec most, float low, float high) {
  const float inf = infinity();
  const float a = size(low), b = size(high), larger_one = a > b ? a : b;
  if (larger_one < inf) return splat(larger_one);
  return most + (a < inf ? a : 0.0f) + (b < inf ? b : 0.0f);
}

inline Vec softened(Vec most, float beta, float threshold) {
  if (!(size(threshold) < 80.0f)) return splat(infinity());
  return most + (size(threshold) + 1.0f) / size(beta);
}

}  // namespace memplan
