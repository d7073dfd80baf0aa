#include "alloc/stacks.h"

#include <Python.h>
#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "alloc/frames.h"
#include "alloc/site_cost.h"
#include "alloc/stack_keys.h"
#include "alloc/stack_text.h"

namespace memplan {
namespace {

constexpr std::size_t kSequences = 1 << 16;  // of a thread, kept; a power of two
constexpr std::uint64_t kReach = 256;  // nodes that ask for nothing lie between two

// The stack of the request that first saw a sequence number: its node's successor.
struct Seen {
  std::uint64_t sequence = 0;
  std::int32_t stack = -1;
};
using Forward = std::shared_ptr<std::vector<Seen>>;

struct Noted {
  std::string frames;  // JSON
  std::int32_t module;
};

// Guarded by the GIL.
struct Table {
  Depth depth = Depth::kNone;
  StackRules rules;
  std::uint64_t (*peek_sequence)() = nullptr;
  Frames frames;
  std::unordered_map<Key, std::int32_t, KeyHash, KeyEqual> index;
  std::unordered_map<std::string, std::int32_t> written;  // what is in the journal
  std::vector<Noted> noted;  // of each index
  std::vector<std::string> modules = {""};
  // Of the thread that made nodes last, and how many threads did: a GPU's backward pass
  // runs in a thread of autograd's own.
  Forward forward;
  int forwards = 0;
  std::unordered_map<const void*, int> numbers;  // of modules, by where they are
  std::uint64_t generation = 0;
  std::unordered_map<const void*, PyObject*> roots;  // weak references
  bool backward = false;    // a backward pass asked, since `gradients_noted`
  bool optimizers = false;  // one has stepped
  SampledCost requests;
  SampledCost calls;  // of modules
};
Table& table() {
  static Table* const the_table = new Table;
  return *the_table;
}
std::atomic<std::int32_t> latest = -1;

// What the calling thread is doing.
struct Doing {
  std::vector<Entered> modules;
  bool optimizer = false;
  Place optimizer_place = {};  // the program's own call of it, if that is noted
  std::uint64_t generation = 0;
  Forward forward;
  std::uint64_t sequence = 0;  // as the request before saw it
  Place node_place = {};       // what made a node, outside of modules
};
thread_local Doing own;

// Of this thread, in the recording that runs.
Doing& now_doing() {
  if (own.generation != table().generation) {
    own = Doing{};
    own.generation = table().generation;
  }
  return own;
}

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

std::int32_t write_stack(Journal& journal, Noted noted, const std::string& operation,
                         int phase) {
  Table& t = table();
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
bool in_backward() {
  if (table().rules.current_task == nullptr) return false;
  PyObject* task = PyObject_CallNoArgs(table().rules.current_task);
  const bool runs = task != nullptr && PyLong_AsLong(task) >= 0;
  Py_XDECREF(task);
  PyErr_Clear();
  return runs;
}

// The stack of the forward pass's request that made `node`, or of the next one; or -1.
std::int32_t forward_stack(PyObject* node) {
  Forward forward = now_doing().forward;
  if (!forward && table().forwards == 1) forward = table().forward;
  if (!forward) return -1;
  static PyObject* const name = PyUnicode_InternFromString("_sequence_nr");
  PyObject* number = PyObject_CallMethodNoArgs(node, name);
  if (number == nullptr) PyErr_Clear();
  if (number == nullptr) return -1;
  const std::uint64_t sequence = PyLong_AsUnsignedLongLongMask(number);
  Py_DECREF(number);
  PyErr_Clear();
  for (std::uint64_t next = sequence + 1; next <= sequence + kReach; ++next) {
    const Seen& seen = (*forward)[next % kSequences];
    if (seen.sequence == next) return seen.stack;
  }
  return -1;
}

// walk: as far as it went; without any place, a thread of autograd's own may be asking.
std::int32_t note_backward(Journal& journal, Walk& walk) {
  Table& t = table();
  PyObject* node = running_node();
  if (node == nullptr && walk.places.empty()) return -1;
  t.backward = true;
  KeyView key{{}, node == nullptr ? nullptr : Py_TYPE(node), -1, kBackward};
  if (node != nullptr) key.origin = forward_stack(node);
  if (key.origin < 0) {
    t.frames.walk(Reach::kUsers, {}, walk);
    key.places = walk.places;
  }
  const auto known = t.index.find(key);
  std::int32_t result = known == t.index.end() ? -1 : known->second;
  if (result < 0) {
    Noted noted{frames_json(walk.places), 0};
    if (key.origin >= 0) noted = t.noted[static_cast<std::size_t>(key.origin)];
    const std::string operation = node == nullptr ? "" : type_name(node);
    if (node != nullptr) Py_INCREF(reinterpret_cast<PyObject*>(Py_TYPE(node)));
    result = write_stack(journal, std::move(noted), operation, kBackward);
    t.index.emplace(Key(key), result);
  }
  Py_XDECREF(node);
  return result;
}

std::int32_t note(Journal& journal, const Walk& walk, int phase) {
  Table& t = table();
  const Doing& doing = now_doing();
  const KeyView key{walk.places, nullptr,
                    doing.modules.empty() ? 0 : doing.modules.back().number, phase};
  const auto known = t.index.find(key);
  if (known != t.index.end()) return known->second;
  const Key kept(key);  // what describes may be recorded, too, and walk anew
  const auto& [code, at] = kept.places.front();
  std::string operation = call_described(t.rules.describe, code, at);
  Noted noted{frames_json(kept.places), kept.origin};
  const std::int32_t result = write_stack(journal, std::move(noted), operation, phase);
  t.index.emplace(kept, result);
  return result;
}

// A node was made just before this request: backward passes will refer to it.
void remember(std::uint64_t sequence, std::int32_t stack) {
  Doing& doing = now_doing();
  if (!doing.forward) {
    doing.forward = std::make_shared<std::vector<Seen>>(kSequences);
    table().forward = doing.forward;
    ++table().forwards;
  }
  Seen& seen = (*doing.forward)[sequence % kSequences];
  if (seen.sequence != sequence) seen = {sequence, stack};
}

std::int32_t capture_with_gil(Journal& journal) {
  Table& t = table();
  Doing& doing = now_doing();
  const std::uint64_t sequence = t.peek_sequence == nullptr ? 0 : t.peek_sequence();
  const bool outside = doing.modules.empty() && !doing.optimizer;
  const bool known = doing.optimizer_place.first != nullptr;
  thread_local Walk walk;  // keeps its memory
  t.frames.walk(known ? Reach::kOne : Reach::kEngine, doing.modules, walk);
  if (walk.places.empty() || walk.backward) return note_backward(journal, walk);
  if (known && !walk.users && t.depth == Depth::kSite) {
    walk.places.push_back(doing.optimizer_place);
  }
  const bool made_node = sequence != doing.sequence;
  doing.sequence = sequence;
  int phase = doing.optimizer ? kOptimizer : kForward;
  if (outside) {
    // An operator made of several asks more than once for its one node.
    const bool again = doing.node_place == walk.places.front();
    const bool forward = made_node || again;
    phase = in_backward() ? kBackward : forward ? kForward : kOutside;
    doing.node_place = forward ? walk.places.front() : Place{};
  }
  const std::int32_t stack = note(journal, walk, phase);
  if (made_node && stack >= 0) remember(sequence, stack);
  return stack;
}

}  // namespace

StackCapture begin_stacks(Depth depth, StackRules rules) {
  Table& t = table();
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
  for (const auto& [root, reference] : t.roots) Py_XDECREF(reference);
  const std::uint64_t generation = t.generation + 1;
  t = Table{};
  t.depth = depth;
  t.generation = generation;
  t.frames = Frames(depth == Depth::kAll, rules.runner, rules.foreign);
  t.rules = std::move(rules);
  latest.store(-1);
  if (depth == Depth::kNone) return nullptr;
  if (void* library = dlopen(t.rules.torch_library.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
    void* symbol = dlsym(library, "_ZN2at15sequence_number4peekEv");
    t.peek_sequence = reinterpret_cast<std::uint64_t (*)()>(symbol);
  }
  return &capture_stack;
}

std::int32_t capture_stack(Journal& journal) {
  if (!Py_IsInitialized()) return -1;
  if (PyGILState_GetThisThreadState() == nullptr) return latest.load();
  const std::int64_t begin = now_ns();
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool timed = table().requests.begins();
  const std::size_t before = table().noted.size();
  // An exception may be under way; ours must not disturb it.
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const std::int32_t index = capture_with_gil(journal);
  if (index >= 0) latest.store(index, std::memory_order_relaxed);
  PyErr_Restore(type, value, trace);
  // A new stack is slow, and is new but once.
  if (timed && table().noted.size() == before) table().requests.timed(begin);
  PyGILState_Release(gil);
  return index;
}

SitesCost sites_cost() {
  const Table& t = table();
  return {t.requests.count(), t.requests.median_ns(), t.calls.count(),
          t.calls.median_ns()};
}

std::int32_t stack_of_module(Journal& journal, int module) {
  return module == 0 ? -1 : write_stack(journal, Noted{"[]", module}, "", kUnknown);
}

void know_root(PyObject* module) {
  PyObject* reference = PyWeakref_NewRef(module, nullptr);
  if (reference == nullptr) PyErr_Clear();
  PyObject*& known = table().roots[module];
  Py_XDECREF(known);
  known = reference;
}

bool is_root(PyObject* module) {
  const auto known = table().roots.find(module);
  if (known == table().roots.end() || known->second == nullptr) return false;
  return PyWeakref_GET_OBJECT(known->second) == module;
}

bool gradients_wait() { return table().backward && !table().optimizers; }

void gradients_noted() { table().backward = false; }

int name_module(std::string name, const void* module) {
  Table& t = table();
  t.modules.push_back(std::move(name));
  const int number = static_cast<int>(t.modules.size()) - 1;
  if (module != nullptr) t.numbers[module] = number;
  return number;
}

std::uint64_t enter_module(const void* module) {
  const bool timed = table().calls.begins();
  const std::int64_t begin = timed ? now_ns() : 0;
  Doing& doing = now_doing();
  const auto known = table().numbers.find(module);
  const int number = known == table().numbers.end() ? 0 : known->second;
  doing.modules.push_back({.number = number, .caller = PyEval_GetFrame()});
  if (timed) table().calls.timed(begin);
  return doing.generation;
}

void leave_module(std::uint64_t recording) {
  Doing& doing = now_doing();
  if (doing.generation == recording) doing.modules.pop_back();
}

bool in_module() { return !now_doing().modules.empty(); }

void set_optimizer(bool runs) {
  Doing& doing = now_doing();
  doing.optimizer = runs;
  doing.optimizer_place = {};
  if (!runs) return;
  table().optimizers = true;
  // Found once, and not for each of the many requests that an optimizer makes.
  Walk walk;
  table().frames.walk(Reach::kUsers, {}, walk);
  if (walk.users) doing.optimizer_place = walk.places.back();
}

}  // namespace memplan
