// Least energy of a nest's buffers, each in whichever memory holds it.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "nest/optimum_problem.h"

namespace memplan::nest::whole {

using optimum::kTensors;
using optimum::Problem;

inline constexpr int kMostLoops = 32;

/// A buffer of one tensor: elements, and what passes between it and what is outside;
/// slides: whether it needs a memory that can have sliding buffers.
struct Buffer {
  double elements, outward;
  bool slides;
};

/// All of one tensor's, inside out, and what the datapath asks for.
struct Buffers {
  static constexpr int kMost = 2 * kMostLoops;

  std::array<Buffer, kMost> rows;
  int count = 0;
  double demand = 0;

  void add(const Buffer& buffer) { rows[count++] = buffer; }
};

/// What the tensors' buffers take in the memories of one problem: a choice that no other
/// one beats.
class Pricing {
 public:
  explicit Pricing(const Problem& problem);

  /// Whether the input's memories can have sliding buffers.
  bool sliding() const { return sliding_; }

  /// pJ of all tensors. Where it is more than `limit`, what comes back may be less than
  /// it is, but not less than `limit`.
  double operator()(const std::array<Buffers, kTensors>& buffers, double limit) const;

 private:
  // Energy, and bytes of each pool.
  struct Part {
    double pj;
    std::array<double, 4> taken;
  };

  // Knots by their logarithms.
  struct Curve {
    explicit Curve(const std::vector<optimum::Knot>& knots);
    double operator()(double bytes) const;

    std::vector<double> log_bytes, log_pj;
  };

  bool tells_last(int tensor) const { return !last_[tensor].log_bytes.empty(); }
  template <typename Offer>
  void offered(int tensor, const Buffer& buffer, double bytes, bool last,
               const Offer& offer) const;
  Part least(int tensor, const Buffers& own) const;
  void parts(int tensor, const Buffers& own, std::vector<Part>& found) const;
  bool fits(const Part& part) const;
  void unbeaten(std::vector<Part>& parts) const;
  double combined(const std::array<Buffers, kTensors>& buffers) const;

  Problem problem_;
  bool sliding_;
  std::vector<Curve> own_, last_;  // of each tensor
};

}  // namespace memplan::nest::whole
