// The Python calls of a thread, and which of them are the program's own.
#pragma once

#include <Python.h>

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/flat_map.h"

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

// Of one thread: what it looked up before, and need not look up with the GIL.
struct CodeHash {
  std::size_t operator()(const PyCodeObject* code) const {
    return reinterpret_cast<std::size_t>(code) * 0x9E3779B97F4A7C15u;
  }
};
using Kinds = FlatMap<PyCodeObject*, Kind, CodeHash>;

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

}  // namespace memplan
