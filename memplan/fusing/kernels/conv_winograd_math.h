// Winograd's minimal filtering F(R, 3) in one dimension (Lavin and Gray 2016).
#pragma once

#include "conv_vector.h"

namespace memplan {

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

}  // namespace memplan
