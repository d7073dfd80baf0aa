// Can what waits still be packed? Proofs that it cannot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/exact_kernels.h"
#include "dsa/exact_model.h"
#include "dsa/exact_state.h"

namespace memplan::dsa {

/// Necessary conditions on a state, for some waiting buffers in the sections
/// [first, end), after the last placement.
///
/// What is pruned is pruned for the sake of one packing that is kept: of those that
/// fit, one with the least sum of offsets. In it no buffer could be moved down alone.
template <class V>
class Bounds {
 public:
  Bounds(const Model<V>& model, const Rules& rules);

  /// False if the buffers certainly cannot all lie beneath `capacity`, none below
  /// `last`, nor any where it is barred.
  bool may_fit(const State<V>& state, std::span<const std::int32_t> waiting,
               std::int32_t first, std::int32_t end, V last, V capacity);

  /// After that was true: no lower than this will the waiting buffer of that position
  /// lie. Known of all if `unallocated` or `stranded` is on.
  V offset(std::size_t position) const { return offset_[position]; }

 private:
  bool releases(const State<V>& state, std::span<const std::int32_t> waiting,
                V last, V capacity);
  bool lift_stranded(std::span<const std::int32_t> waiting, V capacity);
  bool force(const State<V>& state, std::int32_t count, std::int32_t first,
             std::int32_t end, V capacity);
  void lay(std::int32_t i, std::int32_t start, std::int32_t end);
  bool find_rushed(const State<V>& state, std::int32_t first, std::int32_t end,
                   V capacity);
  bool lift_off(std::int32_t at, std::int32_t count, V capacity);
  void reopen(std::int32_t start, std::int32_t end, V offset);
  Lowest<V> lowest_neighbour(std::int32_t k, std::int32_t count, V none) const;
  bool stacks_fit(std::span<const std::int32_t> waiting, std::int32_t first,
                  std::int32_t end, V capacity);

  const Model<V>* model_;
  Rules rules_;
  // By position in `waiting`: lifespan, least offset from now on, size, and how far it
  // may reach above the capacity.
  std::vector<std::int32_t> start_, end_, start_again_, end_again_;
  std::vector<V> offset_, size_, beyond_;
  struct Stranded {
    std::int32_t position;
    V top;  // of the place it was passed over at
  };
  std::vector<Stranded> stranded_;
  std::vector<std::uint64_t> order_;
  std::vector<V> stack_;  // by section
  // By section: the least two offsets, and the position of the lower one; by position:
  // the highest offset that is left for it.
  std::vector<V> lowest_, second_, owner_, deadline_;
  // By block of sections: the highest offset at which anything in it lies low enough;
  // and the same, or -1 for a block that need not be looked at.
  static constexpr std::int32_t kBlock = 16;
  std::vector<V> roomiest_, open_;
  std::vector<std::int32_t> rushed_;
  std::int64_t lifts_ = 0;
};

extern template class Bounds<std::int32_t>;
extern template class Bounds<std::int64_t>;

}  // namespace memplan::dsa
