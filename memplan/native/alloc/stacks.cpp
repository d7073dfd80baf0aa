#include "alloc/stacks.h"

#include <Python.h>
#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/quiet_call.h"
#include "alloc/stack_state.h"

namespace memplan {
namespace {

SiteRules shared;
thread_local Doing own;

SiteTable& table() {
  static SiteTable* const the_table = new SiteTable;
  return *the_table;
}

Doing& now_doing() {
  Doing& doing = own;
  const std::uint64_t generation = shared.generation.load(std::memory_order_acquire);
  if (doing.generation != generation) {
    doing = Doing{};
    doing.generation = generation;
  }
  return doing;
}

SampledCost requests;
SampledCost calls;  // of modules

std::string frames_json(const std::vector<Place>& places) {
  // What ran is no call of the program's own, unless there is nothing else.
  const std::size_t begin = table().depth == Depth::kSite && places.size() > 1 ? 1 : 0;
  std::string json = "[";
  for (std::size_t i = begin; i < places.size(); ++i) {
    if (i > begin) json += ',';
    json += frame_json(places[i].first, places[i].second);
  }
  return json + ']';
}

std::int32_t write_stack(Journal& journal, NotedStack noted, const std::string& operation,
                         int phase) {
  SiteTable& t = table();
  std::string json = "{\"frames\":" + noted.frames + ",\"origin\":[" +
                     quoted(t.modules[static_cast<std::size_t>(noted.module)]) + ',' +
                     quoted(operation) + ',' + std::to_string(phase) + "]}";
  const auto [place, is_new] =
      t.written.try_emplace(json, static_cast<std::int32_t>(t.noted.size()));
  if (is_new) {
    t.noted.push_back(std::move(noted));
    journal.append_stack(std::move(json));
  }
  return place->second;
}

// The node that a backward pass runs; a new reference, or null.
PyObject* running_node() {
  if (table().rules.current_node == nullptr) return nullptr;
  PyObject* node = PyObject_CallNoArgs(table().rules.current_node);
  if (node == nullptr) PyErr_Clear();
  if (node == Py_None) Py_CLEAR(node);
  return node;
}

// Whether the calling thread runs a backward pass, though what asks is the program's own.
// Nothing without the GIL where that takes it.
std::optional<bool> in_backward(const SiteTable* t) {
  if (int (*task)() = shared.current_task.load(std::memory_order_relaxed)) {
    return task() >= 0;
  }
  if (t == nullptr) return std::nullopt;
  if (t->rules.current_task == nullptr) return false;
  PyObject* task = PyObject_CallNoArgs(t->rules.current_task);
  const bool runs = task != nullptr && PyLong_AsLong(task) >= 0;
  Py_XDECREF(task);
  PyErr_Clear();
  return runs;
}

// The stack of the forward pass's request that made `node`, or of the next one; or -1.
std::int32_t forward_stack(const Doing& doing, PyObject* node) {
  Forward forward = doing.forward;
  if (!forward && table().forwards == 1) forward = table().forward;
  if (!forward) return -1;
  static PyObject* const name = PyUnicode_InternFromString("_sequence_nr");
  PyObject* number = PyObject_CallMethodNoArgs(node, name);
  if (number == nullptr) PyErr_Clear();
  if (number == nullptr) return -1;
  const std::uint64_t sequence = PyLong_AsUnsignedLongLongMask(number);
  Py_DECREF(number);
  PyErr_Clear();
  return forward->stack_of(sequence);
}

// doing.walk: as far as it went; without any place, a thread of autograd's own may be
// asking.
std::int32_t note_backward(Journal& journal, Doing& doing, const Walker& walker) {
  SiteTable& t = table();
  Walk& walk = doing.walk;
  PyObject* node = running_node();
  if (node == nullptr && walk.places.empty()) return -1;
  t.backward = true;
  Key key{{}, node == nullptr ? nullptr : Py_TYPE(node), -1, kBackward};
  if (node != nullptr) key.origin = forward_stack(doing, node);
  if (key.origin < 0) {
    walker.walk(Reach::kUsers, {}, {}, walk);
    key.places = walk.places;
  }
  const auto known = t.index.find(key);
  std::int32_t result = known == t.index.end() ? -1 : known->second;
  if (result < 0) {
    NotedStack noted{frames_json(walk.places), 0};
    if (key.origin >= 0) noted = t.noted[static_cast<std::size_t>(key.origin)];
    const std::string operation = node == nullptr ? "" : type_name(node);
    if (node != nullptr) Py_INCREF(reinterpret_cast<PyObject*>(Py_TYPE(node)));
    result = write_stack(journal, std::move(noted), operation, kBackward);
    t.index.emplace(std::move(key), result);
  }
  Py_XDECREF(node);
  return result;
}

std::string described(PyCodeObject* code, int at) {
  const Unobserved unobserved;
  return call_described(table().rules.describe, code, at);
}

// The index of what this thread's walk found, with the GIL.
std::int32_t note(Journal& journal, const Walk& walk, int module, int phase) {
  SiteTable& t = table();
  // A copy: what describes may be recorded, too, and walk anew.
  const Key key{walk.places, nullptr, module, phase};
  const auto known = t.index.find(key);
  if (known != t.index.end()) return known->second;
  const auto& [code, at] = key.places.front();
  std::string operation = described(code, at);
  NotedStack noted{frames_json(key.places), key.origin};
  const std::int32_t result = write_stack(journal, std::move(noted), operation, phase);
  t.index.emplace(key, result);
  return result;
}

// Of the node that this thread makes next.
std::uint64_t sequence_now() {
  std::uint64_t (*const peek)() = shared.peek_sequence.load(std::memory_order_relaxed);
  return peek == nullptr ? 0 : peek();
}

// With the GIL.
Walker walker_of(Doing& doing) {
  return {PyThreadState_Get(), shared.read.load(), doing.kinds, &table().frames};
}

// The calling thread's stack; t: null without the GIL, and then nothing is returned, and
// nothing done, where that would take it.
std::optional<std::int32_t> capture(Journal& journal, PyThreadState* thread, SiteTable* t) {
  Doing& doing = now_doing();
  Walk& walk = doing.walk;
  const std::uint64_t sequence = sequence_now();
  const bool made_node = sequence != doing.sequence;
  if (made_node && !doing.forward && t == nullptr) return std::nullopt;
  const Walker walker{thread, shared.read.load(std::memory_order_relaxed), doing.kinds,
                      t == nullptr ? nullptr : &t->frames};
  // A step that raises ends without a hook.
  if (doing.step.identity != nullptr && !walker.is_in(doing.step)) doing.step = {};
  if (!walker.walk(Reach::kEngine, doing.modules, doing.step, walk)) return std::nullopt;
  if (walk.places.empty() || walk.backward) {
    if (t == nullptr) return std::nullopt;
    return note_backward(journal, doing, walker);
  }
  const bool sites = t == nullptr || t->depth == Depth::kSite;
  int phase = kForward;
  Place node_place = doing.node_place;
  if (doing.step.identity != nullptr) {
    // A step may call what makes a forward pass.
    const bool forward = made_node || doing.modules.size() > doing.step_within;
    phase = forward ? kForward : kOptimizer;
  } else if (doing.modules.empty()) {
    const std::optional<bool> backward = in_backward(t);
    if (!backward) return std::nullopt;
    // An operator made of several asks more than once for its one node.
    const bool again = node_place == walk.places.front();
    const bool forward = made_node || again;
    phase = *backward ? kBackward : forward ? kForward : kOutside;
    node_place = forward ? walk.places.front() : Place{};
  }
  const int module = doing.modules.empty() ? 0 : doing.modules.back().number;
  const Place users = walk.places.size() > 1 ? walk.places[1] : Place{};
  const Asked request{walk.places.front(), users, module, phase};
  const std::int32_t* const before = sites ? doing.stacks.find(request) : nullptr;
  if (before == nullptr && t == nullptr) return std::nullopt;
  const std::int32_t stack =
      before != nullptr ? *before : note(journal, walk, module, phase);
  // What describes a new one may have asked, too, and another recording have begun.
  Doing& after = before != nullptr ? doing : now_doing();
  if (sites && before == nullptr) after.stacks.put(request, stack);
  after.sequence = sequence;
  after.node_place = node_place;
  // A node was made just before this request: backward passes will refer to it.
  if (made_node && stack >= 0) {
    if (!after.forward) {
      after.forward = std::make_shared<ForwardMemory>();
      t->forward = after.forward;
      ++t->forwards;
    }
    after.forward->remember(sequence, stack);
  }
  return stack;
}

std::int32_t capture_with_gil(Journal& journal, bool& is_new) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  const std::size_t before = table().noted.size();
  // An exception may be under way; ours must not disturb it.
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const auto index = capture(journal, PyGILState_GetThisThreadState(), &table());
  PyErr_Restore(type, value, trace);
  is_new = table().noted.size() != before;
  PyGILState_Release(gil);
  return index.value_or(-1);
}

}  // namespace

StackCapture begin_stacks(Depth depth, StackRules rules) {
  SiteTable& t = table();
  t.frames.let_go();
  for (const auto& [key, index] : t.index) {
    Py_XDECREF(static_cast<PyObject*>(const_cast<void*>(key.node)));
  }
  for (PyObject* known : {t.rules.describe, t.rules.current_node, t.rules.current_task}) {
    Py_XDECREF(known);
  }
  for (PyObject* given : {rules.describe, rules.current_node, rules.current_task}) {
    Py_XINCREF(given);
  }
  for (const auto& [object, reference] : t.known) Py_XDECREF(reference);
  t = SiteTable{};
  t.depth = depth;
  t.frames = Frames(depth == Depth::kAll, rules.runner, rules.foreign);
  t.rules = std::move(rules);
  requests.forget();
  calls.forget();
  shared.latest = -1;
  shared.read = frames_are_as_known(PyThreadState_Get());
  shared.sites = depth == Depth::kSite;
  shared.peek_sequence = nullptr;
  shared.current_task = nullptr;
  if (depth != Depth::kNone) {
    if (void* library = dlopen(t.rules.torch_library.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      void* peek = dlsym(library, "_ZN2at15sequence_number4peekEv");
      void* task = dlsym(library, "_ZN5torch8autograd25get_current_graph_task_idEv");
      shared.peek_sequence = reinterpret_cast<std::uint64_t (*)()>(peek);
      shared.current_task = reinterpret_cast<int (*)()>(task);
    }
  }
  shared.generation.fetch_add(1, std::memory_order_release);
  return depth == Depth::kNone ? nullptr : &capture_stack;
}

std::int32_t capture_stack(Journal& journal) {
  if (!Py_IsInitialized()) return -1;
  PyThreadState* const thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return shared.latest.load(std::memory_order_relaxed);
  const bool timed = requests.begins();
  const std::int64_t begin = timed ? now_ns() : 0;
  std::optional<std::int32_t> found;
  bool is_new = false;
  const bool read = shared.read.load(std::memory_order_relaxed);
  if (read && shared.sites.load(std::memory_order_relaxed)) {
    found = capture(journal, thread, nullptr);
  }
  const std::int32_t index = found ? *found : capture_with_gil(journal, is_new);
  if (index >= 0) shared.latest.store(index, std::memory_order_relaxed);
  // A new stack is slow, and is new but once.
  if (timed && !is_new) requests.timed(begin);
  return index;
}

SitesCost sites_cost() {
  return {requests.count(), requests.mean_ns(), calls.count(), calls.mean_ns()};
}

std::int32_t stack_of_module(Journal& journal, int module) {
  return module == 0 ? -1 : write_stack(journal, NotedStack{"[]", module}, "", kUnknown);
}

void know(PyObject* object) {
  PyObject* reference = PyWeakref_NewRef(object, nullptr);
  if (reference == nullptr) PyErr_Clear();
  PyObject*& known = table().known[object];
  Py_XDECREF(known);
  known = reference;
}

bool is_known(PyObject* object) {
  const auto known = table().known.find(object);
  if (known == table().known.end() || known->second == nullptr) return false;
  return PyWeakref_GET_OBJECT(known->second) == object;
}

bool gradients_wait() { return table().backward && !table().optimizers; }

void gradients_noted() { table().backward = false; }

int name_module(std::string name, const void* module) {
  SiteTable& t = table();
  t.modules.push_back(std::move(name));
  const int number = static_cast<int>(t.modules.size()) - 1;
  if (module != nullptr) t.numbers[module] = number;
  return number;
}

std::uint64_t enter_module(const void* module) {
  const bool timed = calls.begins();
  const std::int64_t begin = timed ? now_ns() : 0;
  Doing& doing = now_doing();
  const auto known = table().numbers.find(module);
  const int number = known == table().numbers.end() ? 0 : known->second;
  const Walker walker = walker_of(doing);
  doing.modules.push_back({.number = number, .caller = walker.call(0).identity});
  if (timed) calls.timed(begin);
  return doing.generation;
}

void leave_module(std::uint64_t recording) {
  Doing& doing = now_doing();
  if (doing.generation == recording) doing.modules.pop_back();
}

bool in_module() { return !now_doing().modules.empty(); }

void set_optimizer(bool runs, std::size_t above) {
  Doing& doing = now_doing();
  doing.step = runs ? walker_of(doing).call(above) : Call{};
  if (!runs) return;
  doing.step_within = doing.modules.size();
  doing.sequence = sequence_now();  // nodes that were made before are no part of it
  table().optimizers = true;
}

}  // namespace memplan
