// What objects of Python hold, compared with what they held: at every call of a module.
#include <nanobind/nanobind.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

PyObject* item(const nb::list& rows, std::size_t i, Py_ssize_t column) {
  PyObject* row = PyList_GET_ITEM(rows.ptr(), static_cast<Py_ssize_t>(i));
  if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) <= column) {
    throw nb::type_error("a row is a tuple");
  }
  return PyTuple_GET_ITEM(row, column);
}

PyObject* dict(const nb::list& rows, std::size_t i) {
  PyObject* group = item(rows, i, 0);
  if (!PyDict_Check(group)) throw nb::type_error("a row begins with a dict");
  return group;
}

// What a row's dictionary has by its key, borrowed; null for nothing.
PyObject* found(const nb::list& rows, std::size_t i) {
  PyObject* now = PyDict_GetItemWithError(dict(rows, i), item(rows, i, 1));
  if (now == nullptr && PyErr_Occurred()) throw nb::python_error();
  return now;
}

// Of one type, 1 and True are not; what cannot be compared, as arrays with more than one
// element, has changed.
bool equal(PyObject* now, PyObject* then) {
  if (Py_TYPE(now) != Py_TYPE(then)) return false;
  if (PyFloat_CheckExact(now)) {  // 0.0 and -0.0 are not
    return std::signbit(PyFloat_AS_DOUBLE(now)) == std::signbit(PyFloat_AS_DOUBLE(then)) &&
           PyFloat_AS_DOUBLE(now) == PyFloat_AS_DOUBLE(then);
  }
  const int found = PyObject_RichCompareBool(now, then, Py_EQ);
  if (found >= 0) return found;
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError) &&
      !PyErr_ExceptionMatches(PyExc_ValueError) &&
      !PyErr_ExceptionMatches(PyExc_TypeError)) {
    throw nb::python_error();
  }
  PyErr_Clear();
  return false;
}

bool holds(const nb::list& rows) {
  // Comparing may run code of the caller's, so lists and rows are kept.
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PyObject* now = found(rows, i);
    if (now == item(rows, i, 2)) continue;
    if (now == nullptr) return false;
    const nb::object kept = nb::borrow(now);
    if (!equal(now, item(rows, i, 2))) return false;
  }
  return true;
}

// Whether a getter or method without arguments gives what it gave.
bool gives(const nb::object& now, PyObject* then) {
  if (!now.is_valid()) throw nb::python_error();
  const int found = PyObject_RichCompareBool(now.ptr(), then, Py_EQ);
  if (found < 0) throw nb::python_error();
  return found;
}

bool holds_tensors(const nb::list& rows) {
  static PyObject* const version = PyUnicode_InternFromString("_version");
  static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
  static PyObject* const shape = PyUnicode_InternFromString("shape");
  static PyObject* const stride = PyUnicode_InternFromString("stride");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PyObject* tensor = item(rows, i, 2);
    if (found(rows, i) != tensor) return false;
    if (!gives(nb::steal(PyObject_GetAttr(tensor, version)), item(rows, i, 3)) ||
        !gives(nb::steal(PyObject_CallMethodNoArgs(tensor, data_ptr)),
               item(rows, i, 4))) {
      return false;
    }
    if (!gives(nb::steal(PyObject_GetAttr(tensor, shape)), item(rows, i, 5))) return false;
    PyObject* strides = item(rows, i, 6);
    if (strides != Py_None &&
        !gives(nb::steal(PyObject_CallMethodNoArgs(tensor, stride)), strides)) {
      return false;
    }
  }
  return true;
}

// CPython counts the changes of a dictionary until 3.12; its instances write past the
// count in later versions.
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
std::uint64_t version(PyObject* group) {
  return reinterpret_cast<PyDictObject*>(group)->ma_version_tag;
}
#pragma GCC diagnostic pop
#else
std::uint64_t version(PyObject*) { return 0; }
#endif

PyObject* checked_dict(const nb::list& groups, std::size_t i) {
  PyObject* group = PyList_GET_ITEM(groups.ptr(), static_cast<Py_ssize_t>(i));
  if (!PyDict_Check(group)) throw nb::type_error("a group is a dict");
  return group;
}

nb::bytes versions(const nb::list& groups) {
  std::vector<std::uint64_t> found(groups.size());
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = version(checked_dict(groups, i));
  return nb::bytes(found.data(), found.size() * sizeof found[0]);
}

bool has_versions(const nb::list& groups, const nb::bytes& then) {
  if (then.size() != groups.size() * sizeof(std::uint64_t)) {
    throw nb::value_error("versions are of other groups");
  }
  const char* at = then.c_str();
  for (std::size_t i = 0; i < groups.size(); ++i, at += sizeof(std::uint64_t)) {
    const std::uint64_t now = version(checked_dict(groups, i));
    if (now == 0 || std::memcmp(&now, at, sizeof now) != 0) return false;
  }
  return true;
}

bool has_keys(const nb::list& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PyObject* group = dict(rows, i);
    PyObject* keys = item(rows, i, 1);
    if (!PyTuple_Check(keys)) throw nb::type_error("a row is a dict and its keys");
    if (PyDict_GET_SIZE(group) != PyTuple_GET_SIZE(keys)) return false;
    PyObject* key = nullptr;
    Py_ssize_t at = 0;
    for (Py_ssize_t k = 0; PyDict_Next(group, &at, &key, nullptr); ++k) {
      PyObject* then = PyTuple_GET_ITEM(keys, k);
      if (key != then && !equal(key, then)) return false;
    }
  }
  return true;
}

bool has_bytes(const nb::list& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const void* place = PyLong_AsVoidPtr(item(rows, i, 0));
    char* then = nullptr;
    Py_ssize_t size = 0;
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(item(rows, i, 1), &then, &size)) {
      throw nb::python_error();
    }
    if (std::memcmp(place, then, static_cast<std::size_t>(size)) != 0) return false;
  }
  return true;
}

}  // namespace

NB_MODULE(_state, m) {
  m.doc() = "Whether objects hold what they held.";
  m.def("holds", &holds, "rows"_a);
  m.def("holds_tensors", &holds_tensors, "rows"_a);
  m.def("has_keys", &has_keys, "rows"_a);
  m.def("versions", &versions, "groups"_a);
  m.def("has_versions", &has_versions, "groups"_a, "then"_a);
  m.def("has_bytes", &has_bytes, "rows"_a);
}
