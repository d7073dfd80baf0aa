#include "dsa/exact_state.h"

#include <algorithm>

namespace memplan::dsa {
namespace {

template <class V>
V rounded_up(V offset, V alignment, V limit) {
  if (alignment >= limit) return offset > 0 ? limit : offset;
  return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace

template <class V>
State<V>::State(const Model<V>& model)
    : model_(&model),
      least_(model.n, 0),
      floor_(model.sections, 0),
      remaining_(model.sections, 0),
      barred_(model.n, -1),
      crossing_(model.sections + 1, 0),
      waits_(model.n, true) {
  for (std::int32_t k = 0; k < model.n; ++k) {
    least_[k] = std::max(model.fixed[k], V{0});
    for (auto s = model.start[k]; s < model.end[k]; ++s) remaining_[s] += model.size[k];
    for (auto s = 0; s < model.end_again[k]; ++s) remaining_[s] += model.size[k];
    cross(k, 1);
  }
}

template <class V>
bool State<V>::place(std::int32_t k, V capacity) {
  const Model<V>& model = *model_;
  const V top = least_[k] + model.size[k];
  log_.push_back({kPlaced, static_cast<V>(k)});
  waits_[k] = false;
  cross(k, -1);
  cover(model.start[k], model.end[k], top, model.size[k]);
  if (model.periodic) cover(0, model.end_again[k], top, model.size[k]);
  if (top > capacity + model.beyond[k]) return false;
  // A place above the capacity is none; so no sum grows beyond twice that.
  const V none = capacity + model.most_beyond + 1;
  for (const std::int32_t i : model.neighbours[k]) {
    if (!waits_[i] || least_[i] >= top) continue;
    if (model.any_fixed && model.fixed[i] >= 0) return false;
    const V least = model.aligned ? rounded_up(top, model.align[i], none) : top;
    if (least > capacity + model.beyond[i] - model.size[i]) return false;
    set(least_[i], least, i);
  }
  return true;
}

template <class V>
void State<V>::bar(std::int32_t k) {
  for (; k >= 0; k = model_->next_twin[k]) {
    if (waits_[k]) set(barred_[k], least_[k], kBarred + k);
  }
}

template <class V>
void State<V>::cover(std::int32_t start, std::int32_t end, V top, V size) {
  for (std::int32_t s = start; s < end; ++s) {
    set(floor_[s], top, ~s);
    remaining_[s] -= size;
  }
}

template <class V>
void State<V>::cross(std::int32_t k, std::int32_t by) {
  const Model<V>& model = *model_;
  for (auto s = model.start[k] + 1; s < model.end[k]; ++s) crossing_[s] += by;
  if (model.end_again[k] == 0) return;
  for (auto s = 0; s < model.end_again[k]; ++s) crossing_[s] += by;
}

template <class V>
void State<V>::uncover(std::int32_t k) {
  const Model<V>& model = *model_;
  const V size = model.size[k];
  for (auto s = model.start[k]; s < model.end[k]; ++s) remaining_[s] += size;
  for (auto s = 0; s < model.end_again[k]; ++s) remaining_[s] += size;
  waits_[k] = true;
  cross(k, 1);
}

template <class V>
void State<V>::undo(std::size_t mark) {
  while (log_.size() > mark) {
    const Change change = log_.back();
    log_.pop_back();
    if (change.what == kPlaced) {
      uncover(static_cast<std::int32_t>(change.before));
    } else if (change.what < 0) {
      floor_[~change.what] = change.before;
    } else if (change.what >= kBarred) {
      barred_[change.what - kBarred] = change.before;
    } else {
      least_[change.what] = change.before;
    }
  }
}

template class State<std::int32_t>;
template class State<std::int64_t>;

}  // namespace memplan::dsa
