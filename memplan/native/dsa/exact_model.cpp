#include "dsa/exact_model.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
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
    {"symmetry", &Rules::symmetry},       {"memo", &Rules::memo},
};

std::vector<std::int64_t> section_totals(const Instance& instance,
                                         const Sections& sections) {
  std::vector<std::int64_t> totals(sections.count, 0);
  for (std::size_t i = 0; i < sections.start.size(); ++i) {
    for (std::int32_t s = sections.start[i]; s < sections.end[i]; ++s) {
      totals[s % sections.count] += instance.blocks.size[i];
    }
  }
  return totals;
}

std::vector<double> keys_of(char letter, const Instance& instance,
                            const Sections& sections,
                            const std::vector<std::int64_t>& totals) {
  const Blocks& blocks = instance.blocks;
  const std::size_t n = blocks.size.size();
  std::vector<double> keys(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    const auto life = static_cast<double>(blocks.upper[i] - blocks.lower[i]);
    const auto size = static_cast<double>(blocks.size[i]);
    const std::int32_t start = sections.start[i], end = sections.end[i];
    switch (letter) {
      case 'W': keys[i] = life; break;
      case 'A': keys[i] = life * size; break;
      case 'Z': keys[i] = size; break;
      case 'C': keys[i] = end - start; break;
      case 'T':
        for (std::int32_t s = start; s < end; ++s) {
          keys[i] = std::max(keys[i], static_cast<double>(totals[s % sections.count]));
        }
        break;
      case 'O':
        for (std::size_t k = 0; k < n; ++k) {
          const std::int32_t turn = sections.count;
          for (const std::int32_t by : {-turn, 0, turn}) {
            keys[i] += start < sections.end[k] + by && sections.start[k] + by < end;
          }
        }
        break;
      default: throw std::invalid_argument("an order's letters are W A T C Z O");
    }
  }
  return keys;
}

std::vector<std::int32_t> ranking(const Instance& instance, const Sections& sections,
                                  const std::string& order) {
  const auto totals = section_totals(instance, sections);
  std::vector<std::int32_t> ids(instance.blocks.size.size());
  std::iota(ids.begin(), ids.end(), 0);
  for (auto letter = order.rbegin(); letter != order.rend(); ++letter) {
    const auto keys = keys_of(*letter, instance, sections, totals);
    std::stable_sort(ids.begin(), ids.end(),
                     [&](auto i, auto k) { return keys[i] > keys[k]; });
  }
  return ids;
}

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
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (key(order[i - 1]) == key(order[i])) model.twin[order[i]] = order[i - 1];
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
    rules.memo = false;
  }
  if (!sections) rules.unallocated = false;
  return rules;
}

template <class V>
Model<V> ranked_model(const Instance& instance, const std::string& order) {
  const Blocks& blocks = instance.blocks;
  const Sections sections =
      cut_into_sections(blocks.lower, blocks.upper, blocks.period);
  Model<V> model;
  model.id = ranking(instance, sections, order);
  model.n = static_cast<std::int32_t>(model.id.size());
  model.sections = sections.count;
  for (const std::int32_t i : model.id) {
    const std::int32_t count = sections.count, end = sections.end[i];
    const std::int64_t align = blocks.alignment.empty() ? 1 : blocks.alignment[i];
    model.size.push_back(static_cast<V>(blocks.size[i]));
    model.align.push_back(static_cast<V>(align));
    model.fixed.push_back(static_cast<V>(instance.fixed[i]));
    model.beyond.push_back(
        instance.beyond.empty() ? V{0} : static_cast<V>(instance.beyond[i]));
    model.most_beyond = std::max(model.most_beyond, model.beyond.back());
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

template Model<std::int32_t> ranked_model(const Instance&, const std::string&);
template Model<std::int64_t> ranked_model(const Instance&, const std::string&);

}  // namespace memplan::dsa
