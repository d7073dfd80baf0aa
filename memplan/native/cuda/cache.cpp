#include "cuda/cache.h"

namespace memplan::cuda {

std::optional<RawBlock> Cache::take(Stream stream, std::uint64_t bytes) {
  const auto at = blocks_.lower_bound(Key{stream, bytes, 0});
  if (at == blocks_.end() || std::get<0>(at->first) != stream) return std::nullopt;
  const std::uint64_t size = std::get<1>(at->first);
  if (size - bytes > size / 8) return std::nullopt;
  return remove(at);
}

void Cache::put(const RawBlock& block) {
  const Key key{block.stream, block.size, ++clock_};
  const auto aged = by_age_.emplace(clock_, key).first;
  try {
    blocks_.emplace(key, block.address);
  } catch (...) {
    by_age_.erase(aged);
    throw;
  }
  bytes_ += block.size;
}

std::vector<RawBlock> Cache::evict(std::uint64_t limit) {
  std::vector<RawBlock> out;
  while (bytes_ > limit) {
    RawBlock& last = out.emplace_back();  // before it leaves the cache: this may throw
    last = remove(blocks_.find(by_age_.begin()->second));
  }
  return out;
}

RawBlock Cache::remove(std::map<Key, void*>::iterator at) {
  const auto [stream, size, age] = at->first;
  const RawBlock block{at->second, size, stream};
  by_age_.erase(age);
  blocks_.erase(at);
  bytes_ -= size;
  return block;
}

}  // namespace memplan::cuda
