#include "alloc/labels.h"

#include <Python.h>

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
      label_block(address, device, code, [module](Journal& journal) {
        return stack_of_module(journal, module);
      });
    }
  }
  return true;
}

bool label_gradients(PyObject* optimizer, std::size_t code, bool (*plain)(PyObject*)) {
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
      PyObject* gradient = plain(parameter) ? PyObject_GetAttr(parameter, grad) : nullptr;
      fine = gradient != nullptr && (gradient == Py_None || plain(gradient));
      if (gradient != nullptr) held.push_back(gradient);
    }
  }
  Py_XDECREF(groups);
  PyErr_Clear();
  fine = fine && label_tensors(held, {}, code, nullptr);
  for (PyObject* gradient : held) Py_DECREF(gradient);
  return fine;
}

bool modes_see(PyObject* modes) {
  PyObject* count = PyObject_CallNoArgs(modes);
  const bool seen = count == nullptr || PyObject_IsTrue(count) != 0;
  Py_XDECREF(count);
  PyErr_Clear();
  return seen;
}

}  // namespace memplan
