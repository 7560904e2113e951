// From the library's exceptions to Python's: one class per code, from eitri.errors.
#pragma once

#include <new>

#include "eitri/types.hpp"
#include "python.h"

namespace eitri::python {

/// Sets the Python error for `text`. Where the message says that argument `library` of `op` is wrong, it says `python`, its name here.
void raise(Code code, const char* text, const char* op = nullptr, const char* library = nullptr, const char* python = nullptr);

/// Runs body and returns what it returns; null with a Python error set when it throws.
template <class Body>
PyObject* guarded(Body&& body, const char* op = nullptr, const char* library = nullptr, const char* python = nullptr) {
  try {
    return body();
  } catch (const PythonError&) {
    return nullptr;
  } catch (const Error& error) {
    raise(error.code(), error.what(), op, library, python);
  } catch (const std::bad_alloc&) {
    raise(Code::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    raise(Code::internal, error.what());
  }
  return nullptr;
}

}  // namespace eitri::python
