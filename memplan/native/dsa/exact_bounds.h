// Can what waits still be packed? Proofs that it cannot.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsa/exact_kernels.h"
#include "dsa/exact_memo.h"
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

  /// False if the buffers certainly cannot all lie beneath `capacity`, at or after
  /// `last` in the order of (offset, rank).
  bool may_fit(const State<V>& state, std::span<const std::int32_t> waiting,
               std::int32_t first, std::int32_t end, Last<V> last, V capacity);

 private:
  bool releases(const State<V>& state, std::span<const std::int32_t> waiting,
                Last<V> last, V capacity);
  bool lift_stranded(std::span<const std::int32_t> waiting, V capacity);
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
};

extern template class Bounds<std::int32_t>;
extern template class Bounds<std::int64_t>;

}  // namespace memplan::dsa
