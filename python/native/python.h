// Python's limited API of 3.9, and the few names that are in every Python since then but were declared in it later.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <string>

#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080  // in the limited API since 3.10, the same since 3.7
#endif

#ifndef PyBUF_STRIDES
// In the limited API since 3.11, which froze what had been the same since 3.3.
extern "C" {
typedef struct {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
} Py_buffer;
PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject*);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject*, Py_buffer*, int);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer*);
}
#define PyBUF_FORMAT 0x0004
#define PyBUF_STRIDES (0x0010 | 0x0008)
#endif

namespace eitri::python {

/// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    Py_XDECREF(object_);
    object_ = other.release();
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// Thrown when a Python error is set.
struct PythonError {};
/// The reference, or PythonError when it is null.
inline Ref checked(PyObject* owned) {
  if (owned == nullptr) throw PythonError{};
  return Ref(owned);
}
/// A Python text as UTF-8.
inline std::string text_of(PyObject* object) {
  const Ref bytes = checked(PyUnicode_AsUTF8String(object));
  return PyBytes_AsString(bytes.get());
}

}  // namespace eitri::python
