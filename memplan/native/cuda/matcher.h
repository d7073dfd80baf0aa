// Finds the plan's entry for each request of one stream.
//
// As alloc/replay.h does on the CPU: a request is matched to an entry of exactly its
// rounded size, among the next few of the step that have not been asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace memplan::cuda {

struct Entry {
  std::uint64_t size;   // rounded bytes
  std::int64_t offset;  // -1: not planned, left to cudaMalloc
};

class Matcher {
 public:
  // `starts` holds the index of each step's first entry, ascending, the first 0;
  // steps from `loop_start` on repeat for ever.
  Matcher(std::vector<Entry> entries, std::vector<std::size_t> starts,
          std::size_t loop_start);

  // The offset planned for a request of `size` rounded bytes (-1: not planned), or
  // nothing where the plan has no such request now.
  std::optional<std::int64_t> match(std::uint64_t size);
  // The program begins its next step.
  void next_step();
  // Whether the repeated steps have been reached.
  bool looped() const { return step_ >= loop_start_; }

 private:
  void enter(std::size_t step);

  std::vector<Entry> entries_;
  std::vector<std::size_t> starts_;  // with the end of the last step appended
  std::size_t loop_start_;
  std::size_t step_ = 0;
  std::size_t cursor_ = 0;  // no unused entry of the step lies below it
  std::size_t reach_ = 0;   // one past the last entry matched
  std::vector<bool> used_;
};

}  // namespace memplan::cuda
