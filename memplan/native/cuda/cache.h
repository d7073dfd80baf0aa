// Freed blocks of cudaMalloc, kept for the next request on the same stream.
//
// On its own stream a block can be used again at once: the stream runs in order.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "cuda/runtime.h"

namespace memplan::cuda {

struct RawBlock {
  void* address;
  std::uint64_t size;
  Stream stream;
};

class Cache {
 public:
  // The smallest block of `stream` that holds `bytes`, unless more than an eighth of
  // it would be wasted.
  std::optional<RawBlock> take(Stream stream, std::uint64_t bytes);
  void put(const RawBlock& block);
  // Removes the oldest blocks until at most `limit` bytes are left; the caller gives
  // them back to CUDA.
  std::vector<RawBlock> evict(std::uint64_t limit);
  std::uint64_t bytes() const { return bytes_; }

 private:
  using Key = std::tuple<Stream, std::uint64_t, std::uint64_t>;  // stream, size, age

  RawBlock remove(std::map<Key, void*>::iterator at);

  std::map<Key, void*> blocks_;
  std::map<std::uint64_t, Key> by_age_;
  std::uint64_t clock_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace memplan::cuda
