#include "alloc/frames.h"

#include <frameobject.h>

#include <string_view>

#include "alloc/stack_text.h"

namespace memplan {
namespace {

constexpr std::size_t kMaxDepth = 64;

class NoCollection {
 public:
  NoCollection() = default;
  NoCollection(const NoCollection&) = delete;
  ~NoCollection() {
    if (collects_ != 0) PyGC_Enable();
  }

 private:
  const int collects_ = PyGC_Disable();
};

int offset_in(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT));
#endif
}

// Whether torch.compile wrote the file: CACHE/ab/cab….py, whose name is "c" and 51 digits
// of a hash in base 32, wherever the cache is. As `_GENERATED` of memplan.trace.user_frames.
bool is_generated(std::string_view file) {
  constexpr std::size_t kDigits = 51;
  constexpr std::size_t kLength = sizeof("/ab/c.py") - 1 + kDigits;
  if (file.size() < kLength || !file.ends_with(".py")) return false;
  const std::string_view tail = file.substr(file.size() - kLength);
  const std::string_view digits = tail.substr(5, kDigits);
  return tail[0] == '/' && tail.substr(3, 2) == "/c" &&
         tail.substr(1, 2) == digits.substr(0, 2) &&
         digits.find_first_not_of("abcdefghijklmnopqrstuvwxyz234567") == digits.npos;
}

}  // namespace

Frames::Kind Frames::kind_of_file(PyObject* code) const {
  const std::string file = text_of(code, "co_filename");
  if (file == runner_) return Kind::kRunner;
  if (is_generated(file)) return Kind::kForeign;
  for (const std::string& prefix : foreign_) {
    if (!file.starts_with(prefix)) continue;
    const bool engine = text_of(code, "co_name") == "_engine_run_backward";
    return engine ? Kind::kEngine : Kind::kForeign;
  }
  return Kind::kUsers;
}

Frames::Kind Frames::kind_of(PyCodeObject* code) {
  const auto known = kinds_.find(code);
  if (known != kinds_.end()) return known->second;
  auto* object = reinterpret_cast<PyObject*>(code);
  const Kind kind = kind_of_file(object);
  Py_INCREF(object);
  kinds_.emplace(code, kind);
  return kind;
}

// Whether the walk goes on.
bool Frames::take(Walk& walk, PyFrameObject* frame, Reach reach) {
  PyCodeObject* code = PyFrame_GetCode(frame);
  const Kind kind = kind_of(code);
  Py_DECREF(reinterpret_cast<PyObject*>(code));  // `kinds_` keeps it alive
  if (kind == Kind::kRunner) return false;
  if (kind == Kind::kEngine && !walk.users) walk.backward = true;
  const bool first_users = kind == Kind::kUsers && !walk.users;
  if (all_ || walk.places.empty() || first_users) {
    walk.places.emplace_back(code, offset_in(frame));
  }
  walk.users = walk.users || first_users;
  if (all_) return true;
  if (walk.users || reach == Reach::kOne) return false;
  return reach == Reach::kUsers || !walk.backward;
}

void Frames::walk(Reach reach, std::span<Entered> within, Walk& walk) {
  // Before Python 3.12 making a frame object may collect garbage, and finalizers may call
  // modules and ask for memory: `within` and `walk` are to stay as they are.
  const NoCollection none;
  walk.places.clear();
  walk.users = walk.backward = false;
  std::size_t level = all_ ? 0 : within.size();  // the modules below which it is not yet
  const std::size_t end = level;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  std::size_t depth = 0;
  while (frame != nullptr) {
    bool more = true;
    if (level > 0 && frame == within[level - 1].caller && depth > 0) {
      const Entered& below = within[--level];
      if (below.known) {
        walk.backward = below.backward;
        walk.users = below.users.first != nullptr;
        if (walk.users) walk.places.push_back(below.users);
        more = false;
      }
    }
    more = more && take(walk, frame, reach) && ++depth < kMaxDepth;
    PyFrameObject* back = more ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  // What was found lies below all modules that were passed.
  for (; level < end; ++level) {
    Entered& passed = within[level];
    passed.known = true;
    passed.backward = walk.backward;
    if (walk.users) passed.users = walk.places.back();
  }
}

void Frames::let_go() {
  for (const auto& [code, kind] : kinds_) Py_DECREF(reinterpret_cast<PyObject*>(code));
  kinds_.clear();
}

}  // namespace memplan
