#include "alloc/labels.h"

#include <Python.h>

namespace memplan {
namespace {

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

// The address, or 0; Python's error may be set.
std::uint64_t address_of(PyObject* tensor, PyTypeObject* fake) {
  static PyObject* const is_cpu = interned("is_cpu");
  static PyObject* const untyped_storage = interned("untyped_storage");
  static PyObject* const data_ptr = interned("data_ptr");
  if (fake != nullptr && PyObject_TypeCheck(tensor, fake)) return 0;
  PyObject* on_cpu = PyObject_GetAttr(tensor, is_cpu);
  const bool matters = on_cpu == Py_True;
  Py_XDECREF(on_cpu);
  if (!matters) return 0;
  PyObject* storage = PyObject_CallMethodNoArgs(tensor, untyped_storage);
  if (storage == nullptr) return 0;
  PyObject* pointer = PyObject_CallMethodNoArgs(storage, data_ptr);
  Py_DECREF(storage);
  if (pointer == nullptr) return 0;
  const std::uint64_t address = PyLong_AsUnsignedLongLongMask(pointer);
  Py_DECREF(pointer);
  return PyErr_Occurred() == nullptr ? address : 0;
}

// What a tensor says that has no storage, or what is none says.
bool is_refusal() {
  return PyErr_ExceptionMatches(PyExc_RuntimeError) != 0 ||
         PyErr_ExceptionMatches(PyExc_AttributeError) != 0;
}

}  // namespace

std::vector<std::uint64_t> addresses_of(const std::vector<_object*>& tensors,
                                        _object* fake) {
  std::vector<std::uint64_t> addresses(tensors.size(), 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i] == Py_None) continue;
    addresses[i] = address_of(tensors[i], reinterpret_cast<PyTypeObject*>(fake));
    if (PyErr_Occurred() == nullptr) continue;
    if (!is_refusal()) break;
    PyErr_Clear();
  }
  return addresses;
}

}  // namespace memplan
