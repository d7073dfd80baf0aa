#include "alloc/frames.h"

#include <Python.h>
#include <frameobject.h>

#include <string_view>
#include <utility>

// One version whose frames are known, as its own headers have them: memplan is compiled
// for one version alone, and `frames_are_as_known` compares what is read with what Python says.
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000 && \
    __has_include(<internal/pycore_frame.h>)
#include <internal/pycore_frame.h>
#define MEMPLAN_FRAMES_ARE_KNOWN 1
#else
#define MEMPLAN_FRAMES_ARE_KNOWN 0
#endif

namespace memplan {
namespace {

// The Python calls of a thread, innermost first, as `PyEval_GetFrame` and `PyFrame_GetBack`
// tell of them.
//
// These make an object for every call that is passed, which costs more than all else that
// is done here, then and when the call ends. Where this Python's own frames are known they
// are read instead: by the thread whose they are, even without the GIL, for nobody else
// ever changes which calls a thread is in.

// Frames as Python's objects; with the GIL.
class FrameObjects {
 public:
  explicit FrameObjects(PyThreadState*)
      : collects_(PyGC_Disable()), frame_(PyEval_GetFrame()) {
    Py_XINCREF(reinterpret_cast<PyObject*>(frame_));
  }
  FrameObjects(const FrameObjects&) = delete;
  FrameObjects& operator=(const FrameObjects&) = delete;
  ~FrameObjects() {
    Py_XDECREF(reinterpret_cast<PyObject*>(frame_));
    if (collects_ != 0) PyGC_Enable();
  }
  // False past the outermost call.
  explicit operator bool() const { return frame_ != nullptr; }
  // The same for as long as the call lasts, and no other call's until then.
  const void* identity() const { return frame_; }
  // Alive as long as the call lasts.
  PyCodeObject* code() const {
    PyCodeObject* code = PyFrame_GetCode(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    return code;
  }
  // Of the instruction that runs, in bytes.
  int offset() const {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame_);
#else
    return frame_->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT));
#endif
  }
  void next() {
    PyFrameObject* back = PyFrame_GetBack(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(std::exchange(frame_, back)));
  }

 private:
  // Before Python 3.12 making a frame object may collect garbage, and finalizers may call
  // modules and ask for memory, in the midst of a walk.
  const int collects_;
  PyFrameObject* frame_;
};

#if MEMPLAN_FRAMES_ARE_KNOWN
// The same from the interpreter's own frames: of the calling thread, whose state is given.
class KnownFrames {
 public:
  explicit KnownFrames(PyThreadState* thread)
      : frame_(whole(thread->cframe->current_frame)) {}
  explicit operator bool() const { return frame_ != nullptr; }
  const void* identity() const { return frame_; }
  PyCodeObject* code() const { return frame_->f_code; }
  int offset() const {
    const int at = _PyInterpreterFrame_LASTI(frame_);
    return at < 0 ? -1 : at * static_cast<int>(sizeof(_Py_CODEUNIT));
  }
  void next() { frame_ = whole(frame_->previous); }

 private:
  // The first one from here on that is not still being set up.
  static _PyInterpreterFrame* whole(_PyInterpreterFrame* frame) {
    while (frame != nullptr && _PyFrame_IsIncomplete(frame)) frame = frame->previous;
    return frame;
  }

  _PyInterpreterFrame* frame_;
};
#else
using KnownFrames = FrameObjects;
#endif

constexpr std::size_t kMaxDepth = 64;

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

Kind known_kind(const Walker& walker, PyCodeObject* code) {
  if (const Kind* known = walker.kinds.find(code)) return *known;
  if (walker.frames == nullptr) return Kind::kUnknown;
  const Kind kind = walker.frames->kind_of(code);
  walker.kinds.put(code, kind);
  return kind;
}

// Whether the walk goes on, past this call.
bool take(Walk& walk, bool all, Kind kind, const Place& place, Reach reach) {
  if (kind == Kind::kRunner) return false;
  if (kind == Kind::kEngine && !walk.users && reach == Reach::kEngine) {
    walk.backward = true;
  }
  const bool first_users = kind == Kind::kUsers && !walk.users;
  if (all || walk.places.empty() || first_users) walk.places.push_back(place);
  walk.users = walk.users || first_users;
  if (all) return true;
  return !walk.users && (reach == Reach::kUsers || !walk.backward);
}

template <typename Calls>
bool walk_calls(const Walker& walker, Reach reach, std::span<Entered> within,
                const Call& step, Walk& walk) {
  walk.places.clear();
  walk.users = walk.backward = false;
  const bool all = walker.frames != nullptr && walker.frames->all();
  std::size_t level = all ? 0 : within.size();  // the modules below which it is not yet
  const std::size_t end = level;
  std::size_t depth = 0;
  for (Calls calls(walker.thread); calls && depth < kMaxDepth; calls.next(), ++depth) {
    if (level > 0 && calls.identity() == within[level - 1].caller && depth > 0) {
      const Entered& below = within[--level];
      if (below.known) {
        walk.backward = below.backward;
        walk.users = below.users.first != nullptr;
        if (walk.users) walk.places.push_back(below.users);
        break;
      }
    }
    PyCodeObject* code = calls.code();
    if (calls.identity() == step.identity && code == step.code) reach = Reach::kUsers;
    const Kind kind = known_kind(walker, code);
    if (kind == Kind::kUnknown) return false;
    if (!take(walk, all, kind, {code, calls.offset()}, reach)) break;
  }
  // What was found lies below all modules that were passed.
  for (; level < end; ++level) {
    Entered& passed = within[level];
    passed.known = true;
    passed.backward = walk.backward;
    if (walk.users) passed.users = walk.places.back();
  }
  return true;
}

template <typename Calls>
Call call_above(PyThreadState* thread, std::size_t above) {
  Calls calls(thread);
  while (calls && above-- > 0) calls.next();
  return calls ? Call{calls.identity(), calls.code()} : Call{};
}

template <typename Calls>
bool has_call(PyThreadState* thread, const Call& call) {
  for (Calls calls(thread); calls; calls.next()) {
    if (calls.identity() == call.identity && calls.code() == call.code) return true;
  }
  return false;
}

constexpr std::size_t kMaxText = 1024;

std::string cut(std::string text) {
  if (text.size() <= kMaxText) return text;
  std::size_t end = kMaxText;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not within a character
  text.resize(end);
  return text;
}

}  // namespace

bool frames_are_as_known(PyThreadState* thread) {
#if MEMPLAN_FRAMES_ARE_KNOWN
  FrameObjects told(thread);
  KnownFrames read(thread);
  while (told && read && told.code() == read.code() && told.offset() == read.offset()) {
    told.next();
    read.next();
  }
  return !told && !read;
#else
  static_cast<void>(thread);
  return false;
#endif
}

Kind Frames::kind_of_file(PyObject* code) const {
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

Kind Frames::kind_of(PyCodeObject* code) {
  const auto known = kinds_.find(code);
  if (known != kinds_.end()) return known->second;
  auto* object = reinterpret_cast<PyObject*>(code);
  const Kind kind = kind_of_file(object);
  Py_INCREF(object);
  kinds_.emplace(code, kind);
  return kind;
}

void Frames::let_go() {
  for (const auto& [code, kind] : kinds_) Py_DECREF(reinterpret_cast<PyObject*>(code));
  kinds_.clear();
}

bool Walker::walk(Reach reach, std::span<Entered> within, const Call& step,
                  Walk& walk) const {
  return read ? walk_calls<KnownFrames>(*this, reach, within, step, walk)
              : walk_calls<FrameObjects>(*this, reach, within, step, walk);
}

Call Walker::call(std::size_t above) const {
  return read ? call_above<KnownFrames>(thread, above)
              : call_above<FrameObjects>(thread, above);
}

bool Walker::is_in(const Call& call) const {
  return read ? has_call<KnownFrames>(thread, call) : has_call<FrameObjects>(thread, call);
}

std::string text_of(PyObject* object, const char* attribute) {
  std::string result = "?";
  PyObject* value = PyObject_GetAttrString(object, attribute);
  if (value != nullptr) {
    if (const char* utf8 = PyUnicode_AsUTF8(value)) result = utf8;
    Py_DECREF(value);
  }
  PyErr_Clear();
  return cut(std::move(result));
}

std::string quoted(const std::string& raw) {
  static const char* const digits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20) {
      result += "\\u00";
      result += digits[byte >> 4];
      result += digits[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string frame_json(PyCodeObject* code, int offset) {
  auto* object = reinterpret_cast<PyObject*>(code);
  return '[' + quoted(text_of(object, "co_filename")) + ',' +
         std::to_string(PyCode_Addr2Line(code, offset)) + ',' +
         quoted(text_of(object, "co_name")) + ']';
}

std::string type_name(PyObject* object) {
  const std::string name = Py_TYPE(object)->tp_name;
  return cut(name.substr(name.rfind('.') + 1));
}

std::string call_described(PyObject* describe, PyCodeObject* code, int offset) {
  std::string result;
  if (describe == nullptr) return result;
  PyObject* said = PyObject_CallFunction(describe, "Oi", code, offset);
  if (said != nullptr) {
    if (const char* utf8 = PyUnicode_AsUTF8(said)) result = utf8;
    Py_DECREF(said);
  }
  PyErr_Clear();
  return cut(std::move(result));
}

}  // namespace memplan
