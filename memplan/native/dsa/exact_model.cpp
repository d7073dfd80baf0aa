#include "dsa/exact_model.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "dsa/sections.h"

namespace memplan::dsa {
namespace {

struct Named {
  std::string_view name;
  bool Rules::* member;
};

constexpr Named kRules[] = {
    {"canonical", &Rules::canonical},     {"dominance", &Rules::dominance},
    {"sections", &Rules::sections},       {"unallocated", &Rules::unallocated},
    {"monotone", &Rules::monotone},       {"hatless", &Rules::hatless},
    {"stranded", &Rules::stranded},       {"decomposition", &Rules::decomposition},
    {"ranking", &Rules::ranking},         {"symmetry", &Rules::symmetry},
    {"tightest", &Rules::tightest},       {"forced", &Rules::forced},           {"memo", &Rules::memo},
};

template <class V>
void find_twins(Model<V>& model) {
  const auto key = [&](std::int32_t k) {
    return std::tuple(model.start[k], model.end[k], model.end_again[k], model.size[k],
                      model.align[k], model.beyond[k]);
  };
  std::vector<std::int32_t> order(model.n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto i, auto k) { return key(i) < key(k); });
  std::erase_if(order, [&](auto k) { return model.fixed[k] >= 0; });
  model.twin.assign(model.n, -1);
  model.next_twin.assign(model.n, -1);
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (key(order[i - 1]) != key(order[i])) continue;
    model.twin[order[i]] = order[i - 1];
    model.next_twin[order[i - 1]] = order[i];
  }
}

}  // namespace

bool Rules::set(std::string_view name, bool on) {
  for (const Named& rule : kRules) {
    if (rule.name != name) continue;
    this->*rule.member = on;
    return true;
  }
  return false;
}

Rules Rules::grounded() const {
  Rules rules = *this;
  if (!canonical) {
    rules.dominance = rules.monotone = rules.hatless = rules.stranded = false;
    rules.tightest = rules.memo = false;
  }
  if (!sections) rules.unallocated = false;
  return rules;
}

template <class V>
Model<V> model_of(const Instance& instance) {
  const Blocks& blocks = instance.blocks;
  const Sections sections =
      cut_into_sections(blocks.lower, blocks.upper, blocks.period);
  Model<V> model;
  model.n = static_cast<std::int32_t>(blocks.size.size());
  model.sections = sections.count;
  for (std::int32_t i = 0; i < model.n; ++i) {
    const std::int32_t count = sections.count, end = sections.end[i];
    const std::int64_t align = blocks.alignment.empty() ? 1 : blocks.alignment[i];
    model.size.push_back(static_cast<V>(blocks.size[i]));
    model.align.push_back(static_cast<V>(align));
    model.fixed.push_back(static_cast<V>(instance.fixed[i]));
    model.beyond.push_back(
        instance.beyond.empty() ? V{0} : static_cast<V>(instance.beyond[i]));
    model.most_beyond = std::max(model.most_beyond, model.beyond.back());
    model.life.push_back(blocks.upper[i] - blocks.lower[i]);
    model.start.push_back(sections.start[i]);
    model.end.push_back(std::min(end, count));
    model.start_again.push_back(0);
    model.end_again.push_back(std::max(end - count, 0));
    model.periodic |= end > count;
    model.aligned |= align > 1;
    model.any_fixed |= instance.fixed[i] >= 0;
  }
  model.neighbours.resize(model.n);
  for (std::int32_t i = 0; i < model.n; ++i) {
    for (std::int32_t k = 0; k < model.n; ++k) {
      if (i != k && model.overlap(i, k)) model.neighbours[i].push_back(k);
    }
  }
  find_twins(model);
  return model;
}

template Model<std::int32_t> model_of(const Instance&);
template Model<std::int64_t> model_of(const Instance&);

}  // namespace memplan::dsa
