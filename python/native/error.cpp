#include "error.h"

#include <string>

namespace eitri::python {
namespace {

const char* class_of(Code code) {
  switch (code) {
    case Code::invalid_argument: return "InvalidArgument";
    case Code::unsupported: return "Unsupported";
    case Code::compile_failed: return "CompileFailed";
    case Code::device_error: return "DeviceError";
    case Code::out_of_memory: return "OutOfMemory";
    case Code::io_error: return "IoError";
    default: return "InternalError";
  }
}

}  // namespace

void raise(Code code, const char* text, const char* op, const char* library, const char* python) {
  std::string message = text;
  if (library != nullptr) {
    const std::string before = std::string(op) + ": " + library + " ";
    if (message.rfind(before, 0) == 0) message = std::string(op) + ": " + python + " " + message.substr(before.size());
  }
  const Ref module(PyImport_ImportModule("eitri.errors"));
  const Ref type(module ? PyObject_GetAttrString(module.get(), class_of(code)) : nullptr);
  if (!type) return;  // the import's own error is set
  const Ref value(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  if (value) PyErr_SetObject(type.get(), value.get());
}

}  // namespace eitri::python
