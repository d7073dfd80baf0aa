#include "alloc/optimizers.h"

#include <Python.h>

#include <unordered_map>
#include <vector>

#include "alloc/labels.h"
#include "alloc/quiet_call.h"
#include "alloc/stacks.h"

namespace memplan {
namespace {

// Guarded by the GIL.
OptimizerWatch watch = {};
std::unordered_map<const PyObject*, Py_ssize_t> entries;  // of their states, by optimizer

bool is_of(PyObject* object, PyObject* type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type;
}

bool is_plain(PyObject* parameter) {
  return is_of(parameter, watch.parameter) || is_of(parameter, watch.tensor);
}

bool label_plain_gradients(PyObject* optimizer) {
  if (modes_see(watch.modes)) return false;
  return label_gradients(optimizer, watch.gradients, &is_plain);
}

bool done(PyObject* result) {
  Py_XDECREF(result);
  return result != nullptr;
}

}  // namespace

void watch_optimizers(const OptimizerWatch& given) {
  for (PyObject* each : {given.begins, given.changed}) Py_XINCREF(each);
  for (PyObject* each : {watch.begins, watch.changed}) Py_XDECREF(each);
  watch = given;
  entries.clear();
}

bool optimizer_begins(PyObject* optimizer) {
  if (watch.begins == nullptr) return true;
  if (!is_known(optimizer)) {
    entries.erase(optimizer);  // of one that is gone, and was there
  } else if (label_plain_gradients(optimizer)) {
    set_optimizer(true, 0);
    return true;
  }
  return PyErr_Occurred() == nullptr && done(call_quietly(watch.begins, optimizer));
}

bool optimizer_stepped(PyObject* optimizer) {
  if (watch.changed == nullptr) return true;
  set_optimizer(false);
  static PyObject* const name = PyUnicode_InternFromString("state");
  PyObject* state = PyObject_GetAttr(optimizer, name);
  const Py_ssize_t size = state == nullptr ? -1 : PyObject_Size(state);
  Py_XDECREF(state);
  PyErr_Clear();
  Py_ssize_t& known = entries.try_emplace(optimizer, -1).first->second;
  if (size < 0 || size == known) return true;
  known = size;
  return done(call_quietly(watch.changed, optimizer));
}

}  // namespace memplan
