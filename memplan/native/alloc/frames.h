// The Python calls of a thread, and which of them are the program's own.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memplan {

using Place = std::pair<PyCodeObject*, int>;  // code, and offset of the instruction

// The calls of this thread, innermost first; at the depth of sites the innermost one,
// what ran there, and the program's own, which may be the same.
struct Walk {
  std::vector<Place> places;
  bool users = false;     // one of the program's own was met
  bool backward = false;  // the engine that runs backward passes was met before that
};

// A module that is being called, and what a walk finds below it, once that is known: it
// is the same until the call returns.
struct Entered {
  int number;
  const void* caller;  // the identity of the call that calls it
  bool known = false;
  Place users = {};  // no code: none
  bool backward = false;
};

// How far a walk goes, at the depth of sites: to what runs backward passes or the program's
// own call; or to the latter.
enum class Reach { kEngine, kUsers };

// A call, told from later ones even when it has ended: these may be where it was, but are
// of other code.
struct Call {
  const void* identity = nullptr;
  const PyCodeObject* code = nullptr;
};

// Whose code it is; kUnknown: not looked up yet.
enum class Kind : std::uint8_t { kUnknown, kUsers, kForeign, kEngine, kRunner };

// Few things that are looked up again and again: they lie side by side, and to find one
// touches one line of the core's cache. Nothing is ever taken out. Hash: of a Key, well mixed in its upper bits.
template <typename Key, typename Value, typename Hash>
class FlatMap {
 public:
  // Null if it is not there; valid until `put`.
  const Value* find(const Key& key) const {
    if (entries_.empty()) return nullptr;
    const Entry& entry = entries_[place_of(entries_, key)];
    return entry.taken ? &entry.value : nullptr;
  }
  void put(const Key& key, const Value& value) {
    if (2 * (count_ + 1) > entries_.size()) grow();
    Entry& entry = entries_[place_of(entries_, key)];
    count_ += entry.taken ? 0 : 1;
    entry = {key, value, true};
  }

 private:
  struct Entry {
    Key key = {};
    Value value = {};
    bool taken = false;
  };
  static constexpr std::size_t kFirst = 64;  // a power of two

  // Where it is, or would be: half of all places are free.
  static std::size_t place_of(const std::vector<Entry>& entries, const Key& key) {
    std::size_t at = (Hash{}(key) >> 32) & (entries.size() - 1);
    while (entries[at].taken && !(entries[at].key == key)) {
      at = (at + 1) & (entries.size() - 1);
    }
    return at;
  }
  void grow() {
    std::vector<Entry> larger(entries_.empty() ? kFirst : 2 * entries_.size());
    for (const Entry& entry : entries_) {
      if (entry.taken) larger[place_of(larger, entry.key)] = entry;
    }
    entries_ = std::move(larger);
  }

  std::vector<Entry> entries_;
  std::size_t count_ = 0;
};

// Of one thread: what it looked up before, and need not look up with the GIL.
struct CodeHash {
  std::size_t operator()(const PyCodeObject* code) const {
    return reinterpret_cast<std::size_t>(code) * 0x9E3779B97F4A7C15u;
  }
};
using Kinds = FlatMap<PyCodeObject*, Kind, CodeHash>;

// Whether what is read of the calling thread's frames is what Python says of them. With the
// GIL.
bool frames_are_as_known(PyThreadState* thread);

// Kinds of code, guarded by the GIL.
class Frames {
 public:
  Frames() = default;
  // all: every call, and not sites alone. runner: frames at and below the first one of
  // this file are left out. foreign: what the files that are not the program's own begin
  // with.
  Frames(bool all, std::string runner, std::vector<std::string> foreign)
      : all_(all), runner_(std::move(runner)), foreign_(std::move(foreign)) {}
  bool all() const { return all_; }
  // Code objects are kept alive until `let_go`: an address stands for one of them only.
  Kind kind_of(PyCodeObject* code);
  void let_go();

 private:
  Kind kind_of_file(PyObject* code) const;

  bool all_ = false;
  std::string runner_;
  std::vector<std::string> foreign_;
  std::unordered_map<PyCodeObject*, Kind> kinds_;
};

// What a thread's walks are about. within: the modules that it is in, of which more may be
// known afterwards. frames: null without the GIL, which takes frames that are `read`.
struct Walker {
  PyThreadState* thread;
  bool read;  // whether `frames_are_as_known`
  Kinds& kinds;
  Frames* frames;

  // Of the calling thread, into `walk`; false, without the GIL, where that would take it.
  // step: what calls an optimizer's step; what runs backward passes below it is passed.
  bool walk(Reach reach, std::span<Entered> within, const Call& step, Walk& walk) const;
  // The call so many above the innermost one; none past the outermost. With the GIL.
  Call call(std::size_t above) const;
  // Whether the calling thread still is in a call.
  bool is_in(const Call& call) const;
};

// ---- as the journal has them; all with the GIL

// An attribute that is a text, cut where it is very long; "?" where it is none.
std::string text_of(PyObject* object, const char* attribute);
// As a JSON string.
std::string quoted(const std::string& raw);
// [file, line, function] as JSON, of the instruction at that offset.
std::string frame_json(PyCodeObject* code, int offset);
// The name of the object's type, without its module.
std::string type_name(PyObject* object);
// What `describe(code, offset)` says; "" where it fails.
std::string call_described(PyObject* describe, PyCodeObject* code, int offset);

}  // namespace memplan
