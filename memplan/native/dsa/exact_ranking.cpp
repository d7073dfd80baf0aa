#include "dsa/exact_ranking.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dsa/random.h"

namespace memplan::dsa {
namespace {

template <class V>
double constant(char letter, const Model<V>& model, std::int32_t k) {
  const auto life = static_cast<double>(model.life[k]);
  const auto size = static_cast<double>(model.size[k]);
  switch (letter) {
    case 'W': return life;
    case 'A': return life * size;
    case 'Z': return size;
    case 'C': return model.end[k] - model.start[k] + model.end_again[k];
    default: return 0;
  }
}

}  // namespace

template <class V>
Ranking<V>::Ranking(const Model<V>& model, const std::string& letters)
    : model_(&model), keys_(model.n) {
  change(letters, 0, 0);
}

template <class V>
void Ranking<V>::change(const std::string& letters, std::uint64_t seed,
                        double deviation) {
  if (letters.size() > kMost || letters.find_first_not_of("WATFCZO") != letters.npos) {
    throw std::invalid_argument("an order is up to four of the letters W A T F C Z O");
  }
  letters_ = letters;
  factors_.assign(model_->n, 1);
  Random random(seed);
  for (std::int32_t k = 0; k < model_->n; ++k) {
    if (deviation > 0) factors_[k] = std::exp(deviation * random.normal());
    keys_[k].fill(0);
    for (std::size_t i = 0; i < letters.size(); ++i) {
      keys_[k][i] = factors_[k] * constant(letters[i], *model_, k);
    }
  }
}

template <class V>
void Ranking<V>::sort(std::span<std::int32_t> waiting, const State<V>& state) {
  for (std::size_t i = 0; i < letters_.size(); ++i) {
    const char letter = letters_[i];
    if (letter != 'T' && letter != 'F' && letter != 'O') continue;
    for (const std::int32_t k : waiting) keys_[k][i] = factors_[k] * now(letter, k, state);
  }
  std::sort(waiting.begin(), waiting.end(), [&](std::int32_t i, std::int32_t k) {
    return keys_[i] != keys_[k] ? keys_[i] > keys_[k] : i < k;
  });
}

template <class V>
double Ranking<V>::now(char letter, std::int32_t k, const State<V>& state) const {
  const Model<V>& model = *model_;
  if (letter == 'O') {
    return static_cast<double>(
        std::count_if(model.neighbours[k].begin(), model.neighbours[k].end(),
                      [&](auto i) { return state.waits(i); }));
  }
  V most = 0;
  const auto look = [&](std::int32_t start, std::int32_t end) {
    for (std::int32_t s = start; s < end; ++s) {
      const V placed = letter == 'F' ? state.floor()[s] : V{0};
      most = std::max<V>(most, placed + state.remaining()[s]);
    }
  };
  look(model.start[k], model.end[k]);
  look(model.start_again[k], model.end_again[k]);
  return static_cast<double>(most);
}

template class Ranking<std::int32_t>;
template class Ranking<std::int64_t>;

}  // namespace memplan::dsa
