#include "user_op.h"

#include <memory>
#include <string>

#include "call.h"
#include "eitri/jit.hpp"

namespace eitri::python {
namespace {

struct Made {
  std::unique_ptr<UserOp> op;
  std::string name, kinds;  // a letter per argument: r a tensor that is read, w one that is written, i an integer, f a float
  std::vector<std::string> arguments;
};

/// All that were made, for as long as the process lives: Python code, graphs of torch included, keeps their numbers.
std::vector<std::unique_ptr<Made>>& made() {
  static auto* const all = new std::vector<std::unique_ptr<Made>>;  // under the GIL
  return *all;
}

std::string text(PyObject* dict, const char* key) {
  PyObject* value = PyDict_GetItemString(dict, key);
  if (value == nullptr || value == Py_None) return {};
  const Ref bytes = checked(PyUnicode_AsUTF8String(value));
  return PyBytes_AsString(bytes.get());
}

int64_t number(PyObject* dict, const char* key, int64_t otherwise) {
  PyObject* value = PyDict_GetItemString(dict, key);
  if (value == nullptr || value == Py_None) return otherwise;
  const int64_t n = PyLong_AsLongLong(value);
  if (n == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
  return n;
}

std::vector<std::string> texts_of(PyObject* list) {
  std::vector<std::string> out;
  if (list == nullptr || list == Py_None) return out;
  const Py_ssize_t n = PySequence_Size(list);
  if (n < 0) throw PythonError{};
  for (Py_ssize_t i = 0; i < n; ++i) {
    const Ref item = checked(PySequence_GetItem(list, i)), bytes = checked(PyUnicode_AsUTF8String(item.get()));
    out.emplace_back(PyBytes_AsString(bytes.get()));
  }
  return out;
}

const Made& op_of(PyObject* index) {
  const size_t i = PyLong_AsSize_t(index);
  if (PyErr_Occurred() != nullptr) throw PythonError{};
  require(i < made().size(), "user op: number is ", i, "; expected one of ", made().size());
  return *made()[i];
}

/// (declaration, name, kinds, names of the arguments, {"body": …, "flags": […], "gpu_body": …, …}) -> its number.
PyObject* make(PyObject*, PyObject* args) {
  return guarded([&] {
    const char *declaration = nullptr, *name = nullptr, *kinds = nullptr;
    PyObject *source = nullptr, *arguments = nullptr;
    if (PyArg_ParseTuple(args, "sssOO", &declaration, &name, &kinds, &arguments, &source) == 0) throw PythonError{};
    UserOpSource s{
        .body = text(source, "body"), .before = text(source, "before"), .flags = texts_of(PyDict_GetItemString(source, "flags"))};
    s.gpu.body = text(source, "gpu_body");
    s.gpu.before = text(source, "gpu_before");
    s.gpu.entry = text(source, "gpu_entry");
    s.gpu.flags = texts_of(PyDict_GetItemString(source, "gpu_flags"));
    s.gpu.threads = static_cast<int>(number(source, "gpu_threads", s.gpu.threads));
    if (const std::string blocks = text(source, "gpu_blocks"); !blocks.empty()) s.gpu.blocks = blocks;
    auto entry = std::make_unique<Made>(Made{std::make_unique<UserOp>(declaration, std::move(s)), name, kinds, texts_of(arguments)});
    require(entry->kinds.size() == entry->arguments.size(), name, ": kinds and arguments differ in number");
    made().push_back(std::move(entry));
    return PyLong_FromSize_t(made().size() - 1);
  });
}

/// The arguments of one call, as the library takes them.
struct Arguments {
  Tensors tensors;
  std::vector<View> views;  // values point into it
  std::vector<UserValue> values;

  Arguments(const Made& op, PyObject* const* args, size_t n, Caller caller) : tensors(op.name.c_str()) {
    const char* name = op.name.c_str();
    require(op.kinds.size() == n, name, ": got ", n, " arguments; expected ", op.kinds.size());
    views.reserve(n);
    values.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      const char* arg = op.arguments[i].c_str();
      if (op.kinds[i] == 'r' || op.kinds[i] == 'w') {
        require(args[i] != Py_None, name, ": ", arg, " is None; expected a tensor");
        views.push_back(caller == Caller::fake ? tensors.described(args[i], arg)
                                               : tensors.read(args[i], arg, op.kinds[i] == 'w' ? Access::write : Access::read));
        values.emplace_back(views.back());
      } else if (op.kinds[i] == 'f' || PyFloat_Check(args[i]) != 0) {  // checked against the declaration: an i32 takes no 1.5
        values.emplace_back(read_real(args[i], name, arg));
      } else {
        values.emplace_back(read_integer(args[i], name, arg));
      }
    }
  }
};

/// (number, *arguments). True when done; False when torch's dispatcher has to serve it.
PyObject* call_user_op(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    require(count >= 1, "user op: got no arguments; expected its number first");
    const Made& made_op = op_of(args[0]);
    const Arguments arguments(made_op, args + 1, static_cast<size_t>(count - 1), Caller::user);
    if (arguments.tensors.needs_torch()) {
      Py_INCREF(Py_False);
      return Py_False;
    }
    const Stream stream = arguments.tensors.stream();
    {
      const WithoutGil released;
      made_op.op->call(arguments.values, stream);
    }
    Py_INCREF(Py_True);
    return Py_True;
  });
}

/// (number, *arguments), tensors as Tensors::described takes them: the checks of a call alone.
PyObject* check_user_op(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    require(count >= 1, "user op: got no arguments; expected its number first");
    const Made& made_op = op_of(args[0]);
    made_op.op->check(Arguments(made_op, args + 1, static_cast<size_t>(count - 1), Caller::fake).values);
    Py_INCREF(Py_None);
    return Py_None;
  });
}

PyObject* compile(PyObject*, PyObject* index) {
  return guarded([&] {
    const UserOp& op = *op_of(index).op;
    {
      const WithoutGil released;
      op.compile();
    }
    Py_INCREF(Py_None);
    return Py_None;
  });
}

}  // namespace

void add_user_op_methods(std::vector<PyMethodDef>& methods) {
  const auto fast = [](PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
  };
  methods.push_back({"user_op", make, METH_VARARGS, "Reads a declaration and keeps its source."});
  methods.push_back({"call_user_op", fast(call_user_op), METH_FASTCALL, "Runs it."});
  methods.push_back({"check_user_op", fast(check_user_op), METH_FASTCALL, "Checks descriptions of tensors without memory; see torch_ops."});
  methods.push_back({"compile_user_op", compile, METH_O, "Compiles it for the CPU."});
}

}  // namespace eitri::python
