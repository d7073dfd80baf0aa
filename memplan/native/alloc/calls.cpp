#include "alloc/calls.h"

#include <Python.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "alloc/labels.h"
#include "alloc/quiet_call.h"
#include "alloc/stacks.h"

namespace memplan {
namespace {

// What a function runs by. Python-level attributes stay as they are, and so do its frames,
// tracebacks and what a compiler sees of it. Guarded by the GIL.
struct Watch {
  PyFunctionObject* function = nullptr;
  vectorcallfunc original = nullptr;
  PyObject* entering = nullptr;
  PyObject* called = nullptr;
  PlainTensors tensors = {};  // of torch's own objects, which are never gone
  // Counts listeners, and when one is to be told again: what is quiet is so until then.
  std::uint64_t told = 0;
};
Watch watch;

// Modules that the steps' listener need not be told of, by this thread.
struct Quiet {
  std::uint64_t told = 0;
  std::unordered_set<const PyObject*> modules;
};
thread_local Quiet quiet;

Quiet& quiet_now() {
  if (quiet.told != watch.told) quiet = {watch.told, {}};
  return quiet;
}

bool tell_called(PyObject* module) {
  if (quiet_now().modules.contains(module)) return true;
  PyObject* result = call_quietly(watch.called, module);
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
  PyObject* result = call_quietly(watch.entering, arguments[0], rest);
  Py_DECREF(rest);
  Py_XDECREF(result);
  return result != nullptr;
}

bool is_plain_tensor(PyObject* argument) {
  return reinterpret_cast<PyObject*>(Py_TYPE(argument)) == watch.tensors.type;
}

// Whether Python need not be told of the outermost module that is entered: it is known, and
// all it is given are plain tensors, which are labelled here, and numbers.
bool is_plain(PyObject* const* arguments, Py_ssize_t count) {
  if (!is_known(arguments[0]) || gradients_wait()) return false;
  if (modes_see(watch.tensors.modes)) return false;
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
  return label_tensors(tensors, {}, watch.tensors.inputs, nullptr);
}

bool tell_outermost(PyObject* const* arguments, Py_ssize_t count) {
  return is_plain(arguments, count) ? label_inputs(arguments, count)
                                    : tell_entering(arguments, count);
}

PyObject* watched(PyObject* function, PyObject* const* arguments, std::size_t flags,
                  PyObject* names) {
  const vectorcallfunc original = watch.original;
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 0) return original(function, arguments, flags, names);
  PyObject* module = arguments[0];
  if (watch.called != nullptr && !tell_called(module)) return nullptr;
  if (watch.entering == nullptr) return original(function, arguments, flags, names);
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
  if (watch.original != nullptr && watch.function != given) return false;
  PyObject* const before = slot;
  slot = listener == Py_None ? nullptr : listener;
  Py_XINCREF(slot);
  const bool wanted = watch.entering != nullptr || watch.called != nullptr;
  if (wanted && watch.original == nullptr) {
    Py_INCREF(function);  // for ever: it may be running when the watch ends
    watch.function = given;
    watch.original = given->vectorcall;
    set_vectorcall(given, &watched);
  } else if (!wanted && watch.original != nullptr && given->vectorcall == &watched) {
    set_vectorcall(given, watch.original);
    watch.original = nullptr;
  }
  Py_XDECREF(before);
  return true;
}

}  // namespace

bool watch_sites(_object* function, _object* entering, PlainTensors tensors) {
  watch.tensors = tensors;
  return set_listener(function, watch.entering, entering);
}

bool watch_steps(_object* function, _object* called) {
  ++watch.told;
  return set_listener(function, watch.called, called);
}

void tell_again() { ++watch.told; }

}  // namespace memplan
