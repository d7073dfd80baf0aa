// The Python calls of a thread, innermost first, as `PyEval_GetFrame` and `PyFrame_GetBack`
// tell of them.
//
// These make an object for every call that is passed, which costs more than all else that
// is done here, then and when the call ends. Where this Python's own frames are known they
// are read instead: by the thread whose they are, even without the GIL, for nobody else
// ever changes which calls a thread is in.
#pragma once

#include <Python.h>
#include <frameobject.h>

#include <utility>

// One version whose frames are known, as its own headers have them: memplan is compiled
// for one version alone, and `read_frames` compares what is read with what Python says.
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000 && \
    __has_include(<internal/pycore_frame.h>)
#include <internal/pycore_frame.h>
#define MEMPLAN_FRAMES_ARE_KNOWN 1
#else
#define MEMPLAN_FRAMES_ARE_KNOWN 0
#endif

namespace memplan {

// Frames as Python's objects; with the GIL.
class FrameObjects {
 public:
  explicit FrameObjects(PyThreadState*)
      : collects_(PyGC_Disable()), frame_(PyEval_GetFrame()) {
    Py_XINCREF(reinterpret_cast<PyObject*>(frame_));
  }
  FrameObjects(const FrameObjects&) = delete;
  FrameObjects& operator=(const FrameObjects&) = delete;
  ~FrameObjects() {
    Py_XDECREF(reinterpret_cast<PyObject*>(frame_));
    if (collects_ != 0) PyGC_Enable();
  }
  // False past the outermost call.
  explicit operator bool() const { return frame_ != nullptr; }
  // The same for as long as the call lasts, and no other call's until then.
  const void* identity() const { return frame_; }
  // Alive as long as the call lasts.
  PyCodeObject* code() const {
    PyCodeObject* code = PyFrame_GetCode(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(code));
    return code;
  }
  // Of the instruction that runs, in bytes.
  int offset() const {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame_);
#else
    return frame_->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT));
#endif
  }
  void next() {
    PyFrameObject* back = PyFrame_GetBack(frame_);
    Py_DECREF(reinterpret_cast<PyObject*>(std::exchange(frame_, back)));
  }

 private:
  // Before Python 3.12 making a frame object may collect garbage, and finalizers may call
  // modules and ask for memory, in the midst of a walk.
  const int collects_;
  PyFrameObject* frame_;
};

#if MEMPLAN_FRAMES_ARE_KNOWN
// The same from the interpreter's own frames: of the calling thread, whose state is given.
class KnownFrames {
 public:
  explicit KnownFrames(PyThreadState* thread)
      : frame_(whole(thread->cframe->current_frame)) {}
  explicit operator bool() const { return frame_ != nullptr; }
  const void* identity() const { return frame_; }
  PyCodeObject* code() const { return frame_->f_code; }
  int offset() const {
    const int at = _PyInterpreterFrame_LASTI(frame_);
    return at < 0 ? -1 : at * static_cast<int>(sizeof(_Py_CODEUNIT));
  }
  void next() { frame_ = whole(frame_->previous); }

 private:
  // The first one from here on that is not still being set up.
  static _PyInterpreterFrame* whole(_PyInterpreterFrame* frame) {
    while (frame != nullptr && _PyFrame_IsIncomplete(frame)) frame = frame->previous;
    return frame;
  }

  _PyInterpreterFrame* frame_;
};
#else
using KnownFrames = FrameObjects;
#endif

// Whether what is read of the calling thread's frames is what Python says of them. With
// the GIL.
inline bool frames_are_as_known(PyThreadState* thread) {
#if MEMPLAN_FRAMES_ARE_KNOWN
  FrameObjects told(thread);
  KnownFrames read(thread);
  while (told && read && told.code() == read.code() && told.offset() == read.offset()) {
    told.next();
    read.next();
  }
  return !told && !read;
#else
  static_cast<void>(thread);
  return false;
#endif
}

}  // namespace memplan
