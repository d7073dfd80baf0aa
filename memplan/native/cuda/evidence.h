// Whether a program follows a plan well enough for the plan's arena to be made.
//
// An arena is one large block, taken at once. Of a plan that does not fit it would be a
// burden from the first request to the last, so requests are only followed at first, and
// torch's own allocator serves them. What counts is what the plan has a place for: weights
// are the same whatever the batch.
#pragma once

#include <cstdint>

namespace memplan::cuda {

class Evidence {
 public:
  // A request for `bytes` that the plan has a place of `planned` bytes for.
  void followed(std::uint64_t bytes, std::uint64_t planned) {
    ++requests_;
    followed_ += bytes;
    planned_ += planned;
  }
  // That are none of the plan's where it expects one that it has a place for, or were
  // expected and did not come. (While weights are made, it may be anything: a checkpoint.)
  void departed(std::uint64_t bytes) { departed_ += bytes; }
  // Enough for an arena of `size` bytes: some requests or a large one, nearly all as
  // planned, and not much smaller.
  bool enough(std::uint64_t size) const {
    return (requests_ >= kRequests || followed_ >= size / kLargePart) &&
           followed_ >= size / kLeastPart && followed_ >= kTimes * departed_ &&
           kSmallest * followed_ >= planned_;
  }
  // Before the latest request, of `bytes`, a good part of an arena of `size` bytes came in
  // this step, and lies elsewhere.
  bool late(std::uint64_t size, std::uint64_t bytes) const {
    return followed_ - bytes > size / kGoodPart;
  }
  // Enough for that the step is another: a good part of the arena, and next to nothing of
  // it as planned.
  bool against(std::uint64_t size) const {
    return departed_ >= size / kGoodPart && departed_ >= kTimes * followed_;
  }

 private:
  static constexpr std::uint64_t kRequests = 4;
  static constexpr std::uint64_t kLargePart = 256;  // of the arena
  static constexpr std::uint64_t kLeastPart = 1024;
  static constexpr std::uint64_t kGoodPart = 32;
  static constexpr std::uint64_t kTimes = 9;     // as many bytes as departed
  static constexpr std::uint64_t kSmallest = 2;  // half of what is planned

  std::uint64_t requests_ = 0;
  std::uint64_t followed_ = 0;
  std::uint64_t planned_ = 0;
  std::uint64_t departed_ = 0;
};

}  // namespace memplan::cuda
