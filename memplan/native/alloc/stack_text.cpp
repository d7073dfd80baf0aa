#include "alloc/stack_text.h"

namespace memplan {
namespace {

constexpr std::size_t kMaxText = 1024;

std::string cut(std::string text) {
  if (text.size() <= kMaxText) return text;
  std::size_t end = kMaxText;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not within a character
  text.resize(end);
  return text;
}

}  // namespace

std::string text_of(PyObject* object, const char* attribute) {
  std::string result = "?";
  PyObject* value = PyObject_GetAttrString(object, attribute);
  if (value != nullptr) {
    if (const char* utf8 = PyUnicode_AsUTF8(value)) result = utf8;
    Py_DECREF(value);
  }
  PyErr_Clear();
  return cut(std::move(result));
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

std::string frame_json(PyCodeObject* code, int offset) {
  auto* object = reinterpret_cast<PyObject*>(code);
  return '[' + quoted(text_of(object, "co_filename")) + ',' +
         std::to_string(PyCode_Addr2Line(code, offset)) + ',' +
         quoted(text_of(object, "co_name")) + ']';
}

std::string type_name(PyObject* object) {
  const std::string name = Py_TYPE(object)->tp_name;
  return cut(name.substr(name.rfind('.') + 1));
}

std::string call_described(PyObject* describe, PyCodeObject* code, int offset) {
  std::string result;
  if (describe == nullptr) return result;
  PyObject* said = PyObject_CallFunction(describe, "Oi", code, offset);
  if (said != nullptr) {
    if (const char* utf8 = PyUnicode_AsUTF8(said)) result = utf8;
    Py_DECREF(said);
  }
  PyErr_Clear();
  return cut(std::move(result));
}

}  // namespace memplan
