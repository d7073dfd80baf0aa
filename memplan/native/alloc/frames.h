// The Python calls of a thread, and which of them are the program's own. With the GIL.
#pragma once

#include <Python.h>

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
  PyFrameObject* caller;  // alive as long as the call lasts
  bool known = false;
  Place users = {};  // no code: none
  bool backward = false;
};

// How far a walk goes, at the depth of sites: one call; to what runs backward passes or
// the program's own; or to the latter.
enum class Reach { kOne, kEngine, kUsers };

class Frames {
 public:
  Frames() = default;
  // all: every call, and not sites alone. runner: frames at and below the first one of
  // this file are left out. foreign: what the files that are not the program's own begin
  // with.
  Frames(bool all, std::string runner, std::vector<std::string> foreign)
      : all_(all), runner_(std::move(runner)), foreign_(std::move(foreign)) {}
  // Of the calling thread, into `walk`; within: the modules that it is in, of which more
  // may be known afterwards. Code objects are kept alive until `let_go`: an address
  // stands for one of them only.
  void walk(Reach reach, std::span<Entered> within, Walk& walk);
  void let_go();

 private:
  enum class Kind : std::uint8_t { kUsers, kForeign, kEngine, kRunner };
  Kind kind_of(PyCodeObject* code);
  Kind kind_of_file(PyObject* code) const;
  bool take(Walk& walk, PyFrameObject* frame, Reach reach);

  bool all_ = false;
  std::string runner_;
  std::vector<std::string> foreign_;
  std::unordered_map<PyCodeObject*, Kind> kinds_;
};

}  // namespace memplan
