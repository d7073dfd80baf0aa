#include "alloc/watch.h"

#include <Python.h>

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "alloc/quiet_call.h"
#include "alloc/shim.h"
#include "alloc/stacks.h"

namespace memplan {
namespace {

constexpr int kNowhere = -2;  // no device whose blocks are recorded

struct Devices {
  bool cpu = true;
  bool cuda = false;
};
Devices recorded;  // guarded by the GIL

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

bool is_true(PyObject* tensor, PyObject* name) {
  PyObject* value = PyObject_GetAttr(tensor, name);
  const bool truth = value == Py_True;
  Py_XDECREF(value);
  return truth;
}

// A GPU's index, -1 for the CPU, or kNowhere; Python's error may be set.
int device_of(PyObject* tensor) {
  static PyObject* const is_cpu = interned("is_cpu");
  static PyObject* const is_cuda = interned("is_cuda");
  static PyObject* const get_device = interned("get_device");
  if (recorded.cpu && is_true(tensor, is_cpu)) return -1;
  if (PyErr_Occurred() != nullptr) return kNowhere;
  if (!recorded.cuda || !is_true(tensor, is_cuda)) return kNowhere;
  PyObject* index = PyObject_CallMethodNoArgs(tensor, get_device);
  if (index == nullptr) return kNowhere;
  const long device = PyLong_AsLong(index);
  Py_DECREF(index);
  return device < 0 ? kNowhere : static_cast<int>(device);
}

// The address, or 0; Python's error may be set.
std::uint64_t address_of(PyObject* tensor) {
  static PyObject* const untyped_storage = interned("untyped_storage");
  static PyObject* const data_ptr = interned("data_ptr");
  PyObject* storage = PyObject_CallMethodNoArgs(tensor, untyped_storage);
  if (storage == nullptr) return 0;
  PyObject* pointer = PyObject_CallMethodNoArgs(storage, data_ptr);
  Py_DECREF(storage);
  if (pointer == nullptr) return 0;
  const std::uint64_t address = PyLong_AsUnsignedLongLongMask(pointer);
  Py_DECREF(pointer);
  return PyErr_Occurred() == nullptr ? address : 0;
}

// What a tensor says that has no storage, or what is none says, or a class of the
// program's: any exception but one that ends the program.
bool is_refusal() { return PyErr_ExceptionMatches(PyExc_Exception) != 0; }

// Whether the program's own modes are told of what tensors are asked.
bool modes_see(PyObject* modes) {
  PyObject* count = PyObject_CallNoArgs(modes);
  const bool seen = count == nullptr || PyObject_IsTrue(count) != 0;
  Py_XDECREF(count);
  PyErr_Clear();
  return seen;
}

}  // namespace

void label_devices(bool cpu, bool cuda) { recorded = {cpu, cuda}; }

bool label_tensors(const std::vector<PyObject*>& tensors, const std::vector<int>& modules,
                   std::size_t code, PyObject* fake) {
  auto* const fake_type = reinterpret_cast<PyTypeObject*>(fake);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] == Py_None) continue;
    if (fake_type != nullptr && PyObject_TypeCheck(tensors[i], fake_type)) continue;
    const int device = device_of(tensors[i]);
    const std::uint64_t address = device == kNowhere ? 0 : address_of(tensors[i]);
    if (PyErr_Occurred() != nullptr) {
      if (!is_refusal()) return false;
      PyErr_Clear();
    } else if (address != 0) {
      const int module = modules.empty() ? 0 : modules.at(i);
      state().recorder.label(address, device, code, [module](Journal& journal) {
        return stack_of_module(journal, module);
      });
    }
  }
  return true;
}

// ---- calls of modules

namespace {

// What a function runs by. Python-level attributes stay as they are, and so do its frames,
// tracebacks and what a compiler sees of it. Guarded by the GIL.
struct CallWatch {
  PyFunctionObject* function = nullptr;
  vectorcallfunc original = nullptr;
  PyObject* entering = nullptr;
  PyObject* called = nullptr;
  PlainTensors tensors = {};  // of torch's own objects, which are never gone
  // Counts listeners, and when one is to be told again: what is quiet is so until then.
  std::uint64_t told = 0;
};
CallWatch calls;

// Modules that the steps' listener need not be told of, by this thread.
struct Quiet {
  std::uint64_t told = 0;
  std::unordered_set<const PyObject*> modules;
};
thread_local Quiet quiet;

Quiet& quiet_now() {
  if (quiet.told != calls.told) quiet = {calls.told, {}};
  return quiet;
}

bool tell_called(PyObject* module) {
  if (quiet_now().modules.contains(module)) return true;
  PyObject* result = call_quietly(calls.called, module);
  if (result == nullptr) return false;
  if (result == Py_True) quiet_now().modules.insert(module);
  Py_DECREF(result);
  return true;
}

bool tell_entering(PyObject* const* arguments, Py_ssize_t count) {
  PyObject* rest = PyTuple_New(count - 1);
  if (rest == nullptr) return false;
  for (Py_ssize_t i = 1; i < count; ++i) {
    Py_INCREF(arguments[i]);
    PyTuple_SET_ITEM(rest, i - 1, arguments[i]);
  }
  PyObject* result = call_quietly(calls.entering, arguments[0], rest);
  Py_DECREF(rest);
  Py_XDECREF(result);
  return result != nullptr;
}

bool is_plain_tensor(PyObject* argument) {
  return reinterpret_cast<PyObject*>(Py_TYPE(argument)) == calls.tensors.type;
}

// Whether Python need not be told of the outermost module that is entered: it is known, and
// all it is given are plain tensors, which are labelled here, and numbers.
bool are_plain(PyObject* const* arguments, Py_ssize_t count) {
  if (!is_known(arguments[0]) || gradients_wait()) return false;
  if (modes_see(calls.tensors.modes)) return false;
  for (Py_ssize_t i = 1; i < count; ++i) {
    PyTypeObject* const type = Py_TYPE(arguments[i]);
    const bool other = arguments[i] == Py_None || type == &PyLong_Type ||
                       type == &PyFloat_Type || type == &PyBool_Type;
    if (!is_plain_tensor(arguments[i]) && !other) return false;
  }
  return true;
}

bool label_inputs(PyObject* const* arguments, Py_ssize_t count) {
  std::vector<PyObject*> tensors;
  for (Py_ssize_t i = 1; i < count; ++i) {
    if (is_plain_tensor(arguments[i])) tensors.push_back(arguments[i]);
  }
  return label_tensors(tensors, {}, calls.tensors.inputs, nullptr);
}

bool tell_outermost(PyObject* const* arguments, Py_ssize_t count) {
  return are_plain(arguments, count) ? label_inputs(arguments, count)
                                    : tell_entering(arguments, count);
}

PyObject* watched(PyObject* function, PyObject* const* arguments, std::size_t flags,
                  PyObject* names) {
  const vectorcallfunc original = calls.original;
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 0) return original(function, arguments, flags, names);
  PyObject* module = arguments[0];
  if (calls.called != nullptr && !tell_called(module)) return nullptr;
  if (calls.entering == nullptr) return original(function, arguments, flags, names);
  if (!in_module() && !tell_outermost(arguments, count)) return nullptr;
  const std::uint64_t recording = enter_module(module);
  PyObject* result = original(function, arguments, flags, names);
  leave_module(recording);
  return result;
}

void set_vectorcall(PyFunctionObject* function, vectorcallfunc to) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(function, to);
#else
  function->vectorcall = to;
#endif
}

bool set_listener(PyObject* function, PyObject*& slot, PyObject* listener) {
  if (!PyFunction_Check(function)) return false;
  auto* const given = reinterpret_cast<PyFunctionObject*>(function);
  if (calls.original != nullptr && calls.function != given) return false;
  PyObject* const before = slot;
  slot = listener == Py_None ? nullptr : listener;
  Py_XINCREF(slot);
  const bool wanted = calls.entering != nullptr || calls.called != nullptr;
  if (wanted && calls.original == nullptr) {
    Py_INCREF(function);  // for ever: it may be running when the watch ends
    calls.function = given;
    calls.original = given->vectorcall;
    set_vectorcall(given, &watched);
  } else if (!wanted && calls.original != nullptr && given->vectorcall == &watched) {
    set_vectorcall(given, calls.original);
    calls.original = nullptr;
  }
  Py_XDECREF(before);
  return true;
}

}  // namespace

bool watch_sites(_object* function, _object* entering, PlainTensors tensors) {
  calls.tensors = tensors;
  return set_listener(function, calls.entering, entering);
}

bool watch_steps(_object* function, _object* called) {
  ++calls.told;
  return set_listener(function, calls.called, called);
}

void tell_again() { ++calls.told; }

// ---- optimizers' steps

namespace {

// Guarded by the GIL.
OptimizerWatch steps = {};
std::unordered_map<const PyObject*, Py_ssize_t> entries;  // of their states, by optimizer

bool is_of(PyObject* object, PyObject* type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type;
}

bool is_plain(PyObject* parameter) {
  return is_of(parameter, steps.parameter) || is_of(parameter, steps.tensor);
}

// Labels the gradients of an optimizer's parameters; false, and nothing is said, where one of
// these or of those is not plain, or the program's own modes would be told.
bool label_gradients(PyObject* optimizer) {
  if (modes_see(steps.modes)) return false;
  static PyObject* const param_groups = interned("param_groups");
  static PyObject* const params = interned("params");
  static PyObject* const grad = interned("grad");
  std::vector<PyObject*> held;
  PyObject* groups = PyObject_GetAttr(optimizer, param_groups);
  bool fine = groups != nullptr && PyList_Check(groups);
  for (Py_ssize_t i = 0; fine && i < PyList_GET_SIZE(groups); ++i) {
    PyObject* group = PyList_GET_ITEM(groups, i);
    PyObject* own = PyDict_Check(group) ? PyDict_GetItem(group, params) : nullptr;
    fine = own != nullptr && PyList_Check(own);
    for (Py_ssize_t j = 0; fine && j < PyList_GET_SIZE(own); ++j) {
      PyObject* parameter = PyList_GET_ITEM(own, j);
      PyObject* gradient = is_plain(parameter) ? PyObject_GetAttr(parameter, grad) : nullptr;
      fine = gradient != nullptr && (gradient == Py_None || is_plain(gradient));
      if (gradient != nullptr) held.push_back(gradient);
    }
  }
  Py_XDECREF(groups);
  PyErr_Clear();
  fine = fine && label_tensors(held, {}, steps.gradients, nullptr);
  for (PyObject* gradient : held) Py_DECREF(gradient);
  return fine;
}

bool done(PyObject* result) {
  Py_XDECREF(result);
  return result != nullptr;
}

}  // namespace

void watch_optimizers(const OptimizerWatch& given) {
  for (PyObject* each : {given.begins, given.changed}) Py_XINCREF(each);
  for (PyObject* each : {steps.begins, steps.changed}) Py_XDECREF(each);
  steps = given;
  entries.clear();
}

bool optimizer_begins(PyObject* optimizer) {
  if (steps.begins == nullptr) return true;
  if (!is_known(optimizer)) {
    entries.erase(optimizer);  // of one that is gone, and was there
  } else if (label_gradients(optimizer)) {
    set_optimizer(true, 0);
    return true;
  }
  return PyErr_Occurred() == nullptr && done(call_quietly(steps.begins, optimizer));
}

bool optimizer_stepped(PyObject* optimizer) {
  if (steps.changed == nullptr) return true;
  set_optimizer(false);
  static PyObject* const name = PyUnicode_InternFromString("state");
  PyObject* state = PyObject_GetAttr(optimizer, name);
  const Py_ssize_t size = state == nullptr ? -1 : PyObject_Size(state);
  Py_XDECREF(state);
  PyErr_Clear();
  Py_ssize_t& known = entries.try_emplace(optimizer, -1).first->second;
  if (size < 0 || size == known) return true;
  known = size;
  return done(call_quietly(steps.changed, optimizer));
}

}  // namespace memplan
