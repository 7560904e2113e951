// One call from Python: reads the arguments in the order of Parameters<Op>, and runs the operator.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "parameters.h"
#include "tensor.h"

namespace eitri::python {

/// Throws Error{invalid_argument} that shows the object, in place of the Python error that is set.
[[noreturn]] inline void refuse_object(PyObject* object, const char* op, const char* name, const char* wanted) {
  PyErr_Clear();
  const Ref shown = checked(PyObject_Repr(object)), bytes = checked(PyUnicode_AsUTF8String(shown.get()));
  fail(Code::invalid_argument, str(op, ": ", name, " is ", PyBytes_AsString(bytes.get()), "; expected ", wanted));
}
inline int64_t read_integer(PyObject* object, const char* op, const char* name) {
  const Ref index(PyNumber_Index(object));  // Python 3.9 would read 1.5 as 1
  const int64_t value = index ? PyLong_AsLongLong(index.get()) : -1;
  if (value == -1 && PyErr_Occurred() != nullptr) refuse_object(object, op, name, "a 64-bit integer");
  return value;
}
inline double read_real(PyObject* object, const char* op, const char* name) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred() != nullptr) refuse_object(object, op, name, "a number");
  return value;
}

/// The names of an enum as Python texts, made once.
template <class E> const std::array<PyObject*, 16>& interned_names() {
  static const std::array<PyObject*, 16> all = [] {
    std::array<PyObject*, 16> out{};
    const auto names = enum_names(E{});
    if (names.size() > out.size()) fail(Code::internal, "an enum has more than 16 names");
    for (size_t i = 0; i < names.size(); ++i) out[i] = PyUnicode_InternFromString(names[i]);
    return out;
  }();
  return all;
}

template <class E> E read_choice(PyObject* object, const char* op, const char* name) {
  const auto& names = interned_names<E>();
  for (size_t i = 0; i < names.size() && names[i] != nullptr; ++i)
    if (names[i] == object) [[likely]]  // literals are interned
      return static_cast<E>(i);
  std::string known;
  const auto texts = enum_names(E{});
  const bool is_text = PyUnicode_Check(object) != 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (is_text && PyUnicode_CompareWithASCIIString(object, texts[i]) == 0) return static_cast<E>(i);
    known += str(i == 0 ? "\"" : ", \"", texts[i], "\"");
  }
  refuse_object(object, op, name, ("one of " + known).c_str());
}

/// Who calls. torch's dispatcher has taken all wrappers off, and leaves out trailing arguments that have their default. Fake: so have its
/// fake implementations, whose tensors are descriptions.
enum class Caller : uint8_t { user, torch, fake };

/// Reads positional arguments, one per parameter.
class Reader {
 public:
  Reader(const char* op, PyObject* const* args, Py_ssize_t count, Caller caller)
      : op_(op), args_(args), count_(count), caller_(caller), tensors_(op, caller == Caller::torch ? Wrappers::off : Wrappers::possible) {}

  void tensor(const char* name, View& view) {
    if (PyObject* object = next(); object != nullptr)
      view = caller_ == Caller::fake ? tensors_.described(object, name) : tensors_.read(object, name, Access::read);
  }
  void optional(const char* name, View& view) { tensor(name, view); }
  void weight(const char* name, View& view) {
    if (caller_ == Caller::fake) {
      tensor(name, view);
      if (view.dtype == DType::u8 && view.rank == 1) packed_ = true;
    } else if (PyObject* object = next(); object != nullptr) {
      view = tensors_.read_weight(object, name);
    }
  }
  void optional_weight(const char* name, View& view) { weight(name, view); }
  void output(const char* name, View& view, const char* = nullptr) {
    if (caller_ == Caller::fake) tensor(name, view);
    else if (PyObject* object = next(); object != nullptr) view = tensors_.read(object, name, Access::write);
  }
  void optional_output(const char* name, View& view) { output(name, view); }
  void number(const char* name, int64_t& value) {
    if (PyObject* object = next(); object != nullptr) value = read_integer(object, op_, name);
  }
  void number(const char* name, int& value) {
    int64_t wide = value;
    number(name, wide);
    require(wide == static_cast<int>(wide), op_, ": ", name, " is ", wide, "; expected a 32-bit number");
    value = static_cast<int>(wide);
  }
  void number(const char* name, float& value) {
    if (PyObject* object = next(); object != nullptr) value = static_cast<float>(read_real(object, op_, name));
  }
  template <class E> void choice(const char* name, E& value) {
    if (PyObject* object = next(); object != nullptr) value = read_choice<E>(object, op_, name);
  }
  void activation(ActivationParams& p) {
    choice("activation", p.kind);
    number("limit", p.limit);
    number("alpha", p.alpha);
    number("beta", p.beta);
    number("linear_beta", p.linear_beta);
  }
  void finish() const {
    require(next_ == count_ || (caller_ != Caller::user && next_ > count_), op_, ": got ", count_, " arguments; expected ", next_);
  }
  const Tensors& tensors() const { return tensors_; }
  /// A weight without memory is packed: only its bytes say what it is.
  bool unknown_weight() const { return packed_; }

 private:
  /// Null: not there, the default stays. finish() refuses that where it is not meant.
  PyObject* next() {
    const Py_ssize_t i = next_++;
    return i < count_ ? args_[i] : nullptr;
  }
  const char* op_;
  PyObject* const* args_;
  Py_ssize_t count_, next_ = 0;
  Caller caller_;
  bool packed_ = false;
  Tensors tensors_;
};

/// Writes the schema of torch's operator: "gemm(Tensor a, Tensor b, Tensor(a!) out, Tensor? bias=None, …) -> ()".
class SchemaWriter {
 public:
  explicit SchemaWriter(const char* op) : text_(str(op, "(")) {}
  void tensor(const char* name, const View&) { add("Tensor", name); }
  void weight(const char* name, const View&) { add("Tensor", name); }
  void optional(const char* name, const View&) { add("Tensor?", name, "None"); }
  void optional_weight(const char* name, const View&) { add("Tensor?", name, "None"); }
  void output(const char* name, const View&, const char* = nullptr) { add(str("Tensor(", alias_++, "!)"), name); }
  void optional_output(const char* name, const View&) { add(str("Tensor(", alias_++, "!)?"), name, "None"); }
  void number(const char* name, int64_t value) { add("SymInt", name, str(value)); }
  void number(const char* name, int value) { add("int", name, str(value)); }
  void number(const char* name, float value) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value);
    std::string text(digits, end.ptr);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    add("float", name, text);
  }
  template <class E> void choice(const char* name, E value) {
    add("str", name, str("\"", enum_names(E{})[static_cast<size_t>(value)], "\""));
  }
  void activation(const ActivationParams& p) {
    choice("activation", p.kind);
    number("limit", p.limit);
    number("alpha", p.alpha);
    number("beta", p.beta);
    number("linear_beta", p.linear_beta);
  }
  std::string finish() const { return text_ + ") -> ()"; }

 private:
  void add(const std::string& type, const char* name, const std::string& value = {}) {
    text_ += str(text_.back() == '(' ? "" : ", ", type, " ", name, value.empty() ? "" : "=", value);
  }
  std::string text_;
  char alias_ = 'a';
};

/// What the library calls an output that Python calls otherwise.
struct Renamer {
  const char* library = nullptr;
  const char* python = nullptr;
  void tensor(const char*, const View&) {}
  void weight(const char*, const View&) {}
  void optional(const char*, const View&) {}
  void optional_weight(const char*, const View&) {}
  void output(const char* name, const View&, const char* library_name = nullptr) {
    if (library_name != nullptr) library = library_name, python = name;
  }
  void optional_output(const char*, const View&) {}
  void number(const char*, double) {}
  template <class E> void choice(const char*, E) {}
  void activation(const ActivationParams&) {}
};

/// The tensors that Parameters<Op> lists, to compare with those that the operator has.
struct Listed {
  std::vector<const View*> views;
  void tensor(const char*, View& view) { views.push_back(&view); }
  void weight(const char*, View& view) { views.push_back(&view); }
  void optional(const char*, View& view) { views.push_back(&view); }
  void optional_weight(const char*, View& view) { views.push_back(&view); }
  void output(const char*, View& view, const char* = nullptr) { views.push_back(&view); }
  void optional_output(const char*, View& view) { views.push_back(&view); }
  void number(const char*, double) {}
  template <class E> void choice(const char*, E) {}
  void activation(const ActivationParams&) {}
};

/// Without the GIL, until it goes.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Whether this op's call on a GPU has been seen: then it is only a launch, for which giving up the GIL costs more than it gives.
/// A first call may compile for seconds.
template <class Op> bool is_first_on_gpu(const typename Op::Args& args, DeviceId where) {
  static std::array<uint64_t, 1024> seen{};  // under the GIL; a collision only costs
  const uint64_t key = hash_of(Op::check(args)) ^ (static_cast<uint64_t>(where.index) << 1 | 1);
  uint64_t& slot = seen[key % seen.size()];
  if (slot == key) return false;
  slot = key;
  return true;
}

/// Calls torch's operator of that name: for tensors that only its dispatcher understands.
PyObject* call_torch(const char* op, PyObject* const* args, Py_ssize_t count);

template <class Op> const Renamer& renamed() {
  static const Renamer names = [] {
    Renamer renamer;
    typename Op::Args none;
    Parameters<Op>::walk(renamer, none);
    return renamer;
  }();
  return names;
}

/// All that a call checks before it looks at memory, of tensors that have none.
template <class Op> PyObject* check(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(
      [&]() -> PyObject* {
        typename Op::Args a;
        Reader reader(Op::name, args, count, Caller::fake);
        Parameters<Op>::walk(reader, a);
        reader.finish();
        if (!reader.unknown_weight()) Op::check(a);
        Py_INCREF(Py_None);
        return Py_None;
      },
      Op::name, renamed<Op>().library, renamed<Op>().python);
}

template <class Op, Caller kCaller> PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(
      [&]() -> PyObject* {
        typename Op::Args a;
        Reader reader(Op::name, args, count, kCaller);
        Parameters<Op>::walk(reader, a);
        reader.finish();
        if (reader.tensors().needs_torch()) [[unlikely]] {
          require(kCaller == Caller::user, Op::name, ": got a tensor without memory of its own (fake, meta, sparse or a subclass); ",
                  "expected plain tensors");
          return call_torch(Op::name, args, count);
        }
        const Stream stream = reader.tensors().stream();
        const DeviceId where = device_of<Op>(a);
        if (where.kind == DeviceKind::cpu || is_first_on_gpu<Op>(a, where)) {
          const WithoutGil released;
          Parameters<Op>::run(a, stream);
        } else {
          Parameters<Op>::run(a, stream);
        }
        Py_INCREF(Py_None);
        return Py_None;
      },
      Op::name, renamed<Op>().library, renamed<Op>().python);
}

}  // namespace eitri::python
