#include "alloc/stacks.h"

#include <Python.h>
#include <frameobject.h>

#include <map>
#include <utility>
#include <vector>

namespace memplan {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxText = 1024;

// A stack is told apart by its code objects and lines. The code objects are kept
// alive, so that an address stands for one of them only. Guarded by the GIL.
using Key = std::vector<std::pair<PyCodeObject*, int>>;
struct Table {
  std::map<Key, std::int32_t> index;
  std::int32_t count = 0;
  std::string runner;
};
Table& table() {
  static Table* const the_table = new Table;
  return *the_table;
}

std::string text(PyObject* object, const char* attribute) {
  std::string result = "?";
  PyObject* value = PyObject_GetAttrString(object, attribute);
  if (value != nullptr) {
    if (const char* utf8 = PyUnicode_AsUTF8(value)) result = utf8;
    Py_DECREF(value);
  }
  PyErr_Clear();
  if (result.size() > kMaxText) {
    std::size_t end = kMaxText;
    while (end > 0 && (result[end] & 0xC0) == 0x80) --end;  // not within a character
    result.resize(end);
  }
  return result;
}

std::string quoted(const std::string& raw) {
  static const char* const digits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20) {
      result += "\\u00";
      result += digits[byte >> 4];
      result += digits[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string to_json(const Key& key) {
  std::string json = "[";
  for (const auto& [code, line] : key) {
    auto* object = reinterpret_cast<PyObject*>(code);
    const std::string file = text(object, "co_filename");
    if (file == table().runner) break;
    if (json.size() > 1) json += ',';
    json += '[' + quoted(file) + ',' + std::to_string(line) + ',' +
            quoted(text(object, "co_name")) + ']';
  }
  return json + ']';
}

}  // namespace

void reset_stacks(std::string runner) {
  for (const auto& [key, index] : table().index) {
    for (const auto& [code, line] : key) Py_DECREF(reinterpret_cast<PyObject*>(code));
  }
  table() = Table{{}, 0, std::move(runner)};
}

std::int32_t capture_stack(Journal& journal) {
  if (!Py_IsInitialized()) return -1;
  const PyGILState_STATE gil = PyGILState_Ensure();
  // An exception may be under way; ours must not disturb it.
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Key key;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(reinterpret_cast<PyObject*>(frame));
  while (frame != nullptr && key.size() < kMaxDepth) {
    key.emplace_back(PyFrame_GetCode(frame), PyFrame_GetLineNumber(frame));
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(reinterpret_cast<PyObject*>(frame));
    frame = back;
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(frame));
  std::int32_t index = -1;
  if (!key.empty()) {
    const auto [place, is_new] = table().index.try_emplace(key, table().count);
    index = place->second;
    if (is_new) {
      ++table().count;
      journal.append_stack(to_json(key));
    } else {
      for (const auto& [code, line] : key) Py_DECREF(reinterpret_cast<PyObject*>(code));
    }
  }
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
  return index;
}

}  // namespace memplan
