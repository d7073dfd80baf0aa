#include "alloc/frames.h"

#include <string_view>

#include "alloc/python_calls.h"
#include "alloc/stack_text.h"

namespace memplan {
namespace {

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

}  // namespace

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

}  // namespace memplan
