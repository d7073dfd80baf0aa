// What is known of who asks: of a recording, and of the thread that asks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "alloc/flat_map.h"
#include "alloc/forward_memory.h"
#include "alloc/frames.h"
#include "alloc/stack_keys.h"
#include "alloc/stacks.h"

namespace memplan {

using Forward = std::shared_ptr<ForwardMemory>;

struct NotedStack {
  std::string frames;  // JSON
  std::int32_t module;
};

// Guarded by the GIL.
struct SiteTable {
  Depth depth = Depth::kNone;
  StackRules rules;
  Frames frames;
  std::unordered_map<Key, std::int32_t, KeyHash, KeyEqual> index;
  std::unordered_map<std::string, std::int32_t> written;  // what is in the journal
  std::vector<NotedStack> noted;  // of each index
  std::vector<std::string> modules = {""};
  // Of the thread that made nodes last, and how many threads did: a GPU's backward pass
  // runs in a thread of autograd's own.
  Forward forward;
  int forwards = 0;
  std::unordered_map<const void*, int> numbers;  // of modules, by where they are
  std::unordered_map<const void*, PyObject*> known;  // weak references
  bool backward = false;    // a backward pass asked, since `gradients_noted`
  bool optimizers = false;  // one has stepped
};
SiteTable& table();

// What requests need before they have the GIL, which most never take: Python's frames are
// read, and what they lead to is known to the thread.
struct SiteRules {
  std::atomic<std::uint64_t> generation = 0;  // of recordings
  std::atomic<bool> read = false;             // whether `frames_are_as_known`
  std::atomic<bool> sites = false;            // the depth is that of sites
  std::atomic<std::uint64_t (*)()> peek_sequence = nullptr;
  std::atomic<int (*)()> current_task = nullptr;
  std::atomic<std::int32_t> latest = -1;
};
extern SiteRules shared;

// What a request is known by, at the depth of sites.
struct Asked {
  Place inner, users;
  int module, phase;
  bool operator==(const Asked&) const = default;
};
struct AskedHash {
  std::size_t operator()(const Asked& r) const {
    const auto mixed = [](const Place& place) {
      return (reinterpret_cast<std::size_t>(place.first) ^
              (static_cast<std::size_t>(place.second) << 32)) *
             0x9E3779B97F4A7C15u;
    };
    const auto more = static_cast<std::size_t>(r.module) * 8 +
                      static_cast<std::size_t>(r.phase);
    return (mixed(r.inner) ^ (mixed(r.users) >> 7) ^ more) * 0xD6E8FEB86659FD93u;
  }
};

// What the calling thread is doing, and what it knows.
struct Doing {
  std::vector<Entered> modules;
  Call step = {};               // what calls an optimizer's step, and hooks around it
  std::size_t step_within = 0;  // so many modules
  std::uint64_t generation = 0;
  Forward forward;
  std::uint64_t sequence = 0;  // as the request before saw it
  Place node_place = {};       // what made a node, outside of modules
  Walk walk;                   // keeps its memory
  Kinds kinds;
  FlatMap<Asked, std::int32_t, AskedHash> stacks;
};

// Of this thread, in the recording that runs.
Doing& now_doing();

}  // namespace memplan
