// Frames and names as the journal has them, from Python's objects. All with the GIL.
#pragma once

#include <Python.h>

#include <string>

namespace memplan {

// An attribute that is a text, cut where it is very long; "?" where it is none.
std::string text_of(PyObject* object, const char* attribute);
// As a JSON string.
std::string quoted(const std::string& raw);
// [file, line, function] as JSON, of the instruction at that offset.
std::string frame_json(PyCodeObject* code, int offset);
// The name of the object's type, without its module.
std::string type_name(PyObject* object);
// What `describe(code, offset)` says; "" where it fails.
std::string call_described(PyObject* describe, PyCodeObject* code, int offset);

}  // namespace memplan
