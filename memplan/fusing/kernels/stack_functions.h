// Functions of element-wise operations on vectors, within about two units in the last
// place; NaN gives NaN, and infinities give what the C library's functions give.
// Coefficients are least-maximum fits, but for those of exp, which are Taylor's.
#pragma once

#include "stack_vector.h"

namespace memplan {

MEMPLAN_INLINE Vec choose(Ints yes, Vec one, Vec other) { return yes ? one : other; }

MEMPLAN_INLINE Vec clamp(Vec x, Vec low, Vec high) {
  return smaller(high, larger(low, x));  // NaN stays NaN
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
  const Vec r = reduced(clamp(x, splat(-104.0f), splat(89.0f)), n);
  const Vec near = exp_rest(r) * (r * r) + r + 1.0f;
  const Ints half = n >> 1;  // in two parts, for subnormal results and large ones
  return near * power_of_two(half) * power_of_two(n - half);
}

// For x <= 0.
MEMPLAN_INLINE Vec expm1(Vec x) {
  Ints n;
  const Vec r = reduced(clamp(x, splat(-80.0f), splat(0.0f)), n);
  const Vec scale = power_of_two(n);
  return (exp_rest(r) * (r * r) + r) * scale + (scale - 1.0f);
}

MEMPLAN_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

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

// Where x beta exceeds the threshold it is x.
MEMPLAN_INLINE Vec softplus(Vec x, float beta, float threshold) {
  const Vec scaled = x * beta;
  return scaled > threshold ? x : log1p(exp(scaled)) / beta;
}

MEMPLAN_INLINE Vec mish(Vec x) {
  const Vec e = exp(smaller(splat(20.0f), x)), product = e * (e + 2.0f);
  return x * (product / (product + 2.0f));
}

MEMPLAN_INLINE Vec silu(Vec x) { return x / (1.0f + exp(-x)); }

MEMPLAN_INLINE Vec gelu(Vec x) { return 0.5f * x * (1.0f + erf(x * 0.707106781f)); }

MEMPLAN_INLINE Vec gelu_tanh(Vec x) {
  return 0.5f * x * (1.0f + tanh(0.797884561f * (x + 0.044715f * x * x * x)));
}

MEMPLAN_INLINE Vec hardsigmoid(Vec x) {
  return clamp(x + 3.0f, Vec{}, splat(6.0f)) / 6.0f;
}

MEMPLAN_INLINE Vec hardswish(Vec x) {
  return x * clamp(x + 3.0f, Vec{}, splat(6.0f)) / 6.0f;
}

// How large values may get: what is at most `most` in magnitude, by an operation.
inline float size(float x) { return x < 0.0f ? -x : x; }

inline Vec clamped(Vec most, float low, float high) {
  const float inf = __builtin_inff();
  const float a = size(low), b = size(high), larger_one = a > b ? a : b;
  if (larger_one < inf) return splat(larger_one);
  return most + (a < inf ? a : 0.0f) + (b < inf ? b : 0.0f);
}

inline Vec softened(Vec most, float beta, float threshold) {
  if (!(size(threshold) < 80.0f)) return splat(__builtin_inff());
  return most + (size(threshold) + 1.0f) / size(beta);
}

}  // namespace memplan
