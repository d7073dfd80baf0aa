// Calls of memplan's own Python from a program's, of which its tracer and profiler
// (`sys.settrace`, `sys.setprofile`) are not told.
#pragma once

#include <Python.h>

namespace memplan {

// While it lives this thread's tracer and profiler are told of nothing. With the GIL.
// Python 3.10 has no such thing: there they are told.
class Unobserved {
 public:
#if PY_VERSION_HEX >= 0x030B0000
  Unobserved() : thread_(PyThreadState_Get()) { PyThreadState_EnterTracing(thread_); }
  ~Unobserved() { PyThreadState_LeaveTracing(thread_); }
#else
  Unobserved() = default;
  ~Unobserved() {}
#endif
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

#if PY_VERSION_HEX >= 0x030B0000
 private:
  PyThreadState* thread_;
#endif
};

// A new reference, or null with Python's error set. The callee may be let go of meanwhile.
inline PyObject* call_quietly(PyObject* callee, PyObject* first, PyObject* second = nullptr,
                              PyObject* third = nullptr) {
  const Unobserved unobserved;
  Py_INCREF(callee);
  PyObject* result = PyObject_CallFunctionObjArgs(callee, first, second, third, nullptr);
  Py_DECREF(callee);
  return result;
}

}  // namespace memplan
