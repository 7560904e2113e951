// The extension module eitri.lib._native: one function per operator with every argument given by position, and the small rest.
// The documented functions are in python/eitri/ops.py.
#include <vector>

#include "backend/gpu.h"
#include "call.h"
#include "eitri/jit.hpp"
#include "jax.h"
#include "user_op.h"

namespace eitri::python {

PyObject* call_torch(const char* op, PyObject* const* args, Py_ssize_t count) {
  const Ref module = checked(PyImport_ImportModule("eitri.torch_ops"));
  const Ref positional = checked(PyTuple_New(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(args[i]);
    if (PyTuple_SetItem(positional.get(), i, args[i]) != 0) throw PythonError{};
  }
  return checked(PyObject_CallMethod(module.get(), "dispatch", "sO", op, positional.get())).release();
}

namespace {

PyObject* python_text(std::string_view text) { return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"); }

PyObject* schemas(PyObject*, PyObject*) {
  return guarded([] {
    Ref all = checked(PyDict_New());
    for_each_op([&]<class Op>() {
      SchemaWriter writer(Op::name);
      typename Op::Args defaults;
      Parameters<Op>::walk(writer, defaults);
      const Ref text = checked(python_text(writer.finish()));
      if (PyDict_SetItemString(all.get(), Op::name, text.get()) != 0) throw PythonError{};
    });
    return all.release();
  });
}

/// Tensor arguments of operators that parameters.h forgets, as "gemm.bias": for the tests.
PyObject* unlisted(PyObject*, PyObject*) {
  return guarded([] {
    Ref all = checked(PyList_New(0));
    for_each_op([&]<class Op>() {
      typename Op::Args args;
      Listed listed;
      Parameters<Op>::walk(listed, args);
      Op::tensors(args, [&](const char* name, const View& view) {
        if (std::find(listed.views.begin(), listed.views.end(), &view) != listed.views.end()) return;
        const Ref text = checked(python_text(str(Op::name, ".", name)));
        if (PyList_Append(all.get(), text.get()) != 0) throw PythonError{};
      });
    });
    return all.release();
  });
}

PyObject* empty_like(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    require(count == 3, "empty: got ", count, " arguments; expected like, shape and dtype");
    return empty(args[0], args[1], args[2]);
  });
}

PyObject* tuple_of(std::initializer_list<int64_t> values) {
  Ref tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  Py_ssize_t i = 0;
  for (const int64_t value : values) PyTuple_SetItem(tuple.get(), i++, checked(PyLong_FromLongLong(value)).release());
  return tuple.release();
}

/// (weight, operator, argument): the logical shape of a weight, packed or not; the texts are for messages.
PyObject* weight_shape(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    require(count == 3, "weight_shape: got ", count, " arguments; expected 3");
    const std::string op = text_of(args[1]), name = text_of(args[2]);
    Tensors tensors(op.c_str());
    const View v = tensors.read_weight(args[0], name.c_str());
    require(!tensors.needs_torch(), op, ": ", name,
            " has no memory of its own (fake, meta or a subclass); expected plain packed weights, or out");
    if (v.rank == 2) return tuple_of({v.shape[0], v.shape[1]});
    if (v.rank == 3) return tuple_of({v.shape[0], v.shape[1], v.shape[2]});
    fail(Code::invalid_argument, str(op, ": ", name, " is ", v, "; expected 2 or 3 dimensions, or packed weights"));
  });
}

PackFormat format_of(PyObject* object) {
  const std::string text = PyUnicode_Check(object) != 0 ? text_of(object) : std::string();
  if (text != "panel32" && text != "onednn") refuse_object(object, "pack_weights", "format", "\"panel32\" or \"onednn\"");
  return text == "onednn" ? PackFormat::onednn : PackFormat::panel32;
}

/// (weights, gate, format, m_hint, quant, scale).
PackArgs pack_args(Tensors& tensors, PyObject* const* args) {
  const int64_t m_hint = read_integer(args[3], "pack_weights", "m_hint");
  PackArgs out{.weights = tensors.read(args[0], "weights", Access::read),
               .gate = read_choice<GateLayout>(args[1], "pack_weights", "gate"),
               .format = format_of(args[2]),
               .m_hint = m_hint,
               .quant = read_choice<Quant>(args[4], "pack_weights", "quant"),
               .scale = tensors.read(args[5], "scale", Access::read)};
  require(!tensors.needs_torch(), "pack_weights: weights has no memory of its own (fake, meta or a subclass); expected a plain tensor");
  require(out.weights.device.kind == DeviceKind::cpu, "pack_weights: weights is on ", out.weights.device,
          "; expected CPU memory (packed weights are for CPUs)");
  return out;
}

PyObject* packed_size(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    require(count == 6, "packed_bytes: got ", count, " arguments; expected 6");
    Tensors tensors("pack_weights");
    return PyLong_FromSize_t(packed_bytes(pack_args(tensors, args)));
  });
}

PyObject* pack(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    require(count == 7, "pack_weights: got ", count, " arguments; expected 7");
    Tensors tensors("pack_weights");
    const PackArgs options = pack_args(tensors, args);
    const View out = tensors.read(args[6], "out", Access::write);
    const auto needed = static_cast<int64_t>(packed_bytes(options));
    require(out.dtype == DType::u8 && out.rank == 1 && out.shape[0] == needed && out.stride[0] == 1 && out.device.kind == DeviceKind::cpu,
            "pack_weights: out is ", out, "; expected contiguous u8[", needed, "] in CPU memory");
    require(reinterpret_cast<uintptr_t>(out.data) % 64 == 0, "pack_weights: out is not aligned; expected a multiple of 64 bytes");
    {
      const WithoutGil released;
      pack_weights(options, out.data);
    }
    Py_INCREF(Py_None);
    return Py_None;
  });
}

PyObject* explain_text(PyObject*, PyObject* args) {
  return guarded([&] {
    const char *op = nullptr, *problem = nullptr, *form = nullptr, *kind = nullptr;
    int index = 0;
    if (PyArg_ParseTuple(args, "ssssi", &op, &problem, &form, &kind, &index) == 0) throw PythonError{};
    const std::string_view name = kind;
    require(name == "cpu" || name == "cuda" || name == "hip", "explain: device is \"", name, "\"; expected cpu, cuda:N or hip:N");
    const DeviceId device{name == "cpu" ? DeviceKind::cpu : name == "cuda" ? DeviceKind::cuda : DeviceKind::hip, index};
    return python_text(std::string_view(form) == "json" ? explain_json(op, problem, device) : explain(op, problem, device));
  });
}

PyObject* prebuild_kernels(PyObject*, PyObject* args) {
  return guarded([&] {
    const char *op = nullptr, *problem = nullptr, *targets = nullptr;
    if (PyArg_ParseTuple(args, "sss", &op, &problem, &targets) == 0) throw PythonError{};
    PrebuildResult result;
    {
      const WithoutGil released;
      result = prebuild(op, problem, targets);
    }
    return tuple_of({static_cast<int64_t>(result.kernels), static_cast<int64_t>(result.compiled)});
  });
}

PyObject* seal_all(PyObject*, PyObject*) {
  return guarded([] {
    seal();
    Py_INCREF(Py_None);
    return Py_None;
  });
}

PyObject* count_launches(PyObject*, PyObject*) {
  return guarded([] {
    Ref all = checked(PyDict_New());
    for (const auto& [name, value] : counters()) {
      const Ref number = checked(PyLong_FromLongLong(value));
      if (PyDict_SetItemString(all.get(), name.c_str(), number.get()) != 0) throw PythonError{};
    }
    return all.release();
  });
}

PyObject* version_text(PyObject*, PyObject*) { return python_text(version()); }

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

std::vector<PyMethodDef>& methods() {
  static std::vector<PyMethodDef> all = [] {
    std::vector<PyMethodDef> out;
    for_each_op([&]<class Op>() {
      static const std::string direct = str(Op::name, "_direct"), check_only = str(Op::name, "_check");
      out.push_back({Op::name, fast(call<Op, Caller::user>), METH_FASTCALL, "Every argument by position; see eitri.ops."});
      out.push_back({direct.c_str(), fast(call<Op, Caller::torch>), METH_FASTCALL, "As torch's dispatcher calls it."});
      out.push_back({check_only.c_str(), fast(check<Op>), METH_FASTCALL, "Checks descriptions of tensors without memory; see torch_ops."});
    });
    out.push_back({"schemas", schemas, METH_NOARGS, "Operator name -> schema in torch's language."});
    out.push_back({"unlisted", unlisted, METH_NOARGS, "Arguments of operators that Python lacks."});
    out.push_back({"empty", fast(empty_like), METH_FASTCALL, "An uninitialised tensor of the kind and device of another."});
    out.push_back({"weight_shape", fast(weight_shape), METH_FASTCALL, "Logical shape of a weight, packed or not."});
    out.push_back({"packed_bytes", fast(packed_size), METH_FASTCALL, "Bytes that pack_weights writes."});
    out.push_back({"pack_weights", fast(pack), METH_FASTCALL, "Packs into a buffer."});
    out.push_back({"explain", explain_text, METH_VARARGS, "The routing of a problem."});
    out.push_back({"prebuild", prebuild_kernels, METH_VARARGS, "Compiles ahead: (kernels, compiled)."});
    out.push_back({"seal", seal_all, METH_NOARGS, "Later compiles are errors."});
    out.push_back({"counters", count_launches, METH_NOARGS, "Launches by kernel, route misses, …"});
    out.push_back({"version", version_text, METH_NOARGS, "Of the library."});
    add_user_op_methods(out);
    add_jax_methods(out);
    out.push_back({nullptr, nullptr, 0, nullptr});
    return out;
  }();
  return all;
}

}  // namespace
}  // namespace eitri::python

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__native(void);
PyObject* PyInit__native(void) {
  using namespace eitri::python;
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT, "eitri.lib._native", nullptr, -1, methods().data(), nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&definition);
}
