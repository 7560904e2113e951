// Handlers of XLA custom calls on CPUs, one an operator. The buffers of a call are the tensors that attribute "given" marks, in the
// order of Parameters<Op>: 'i' an input, 'o' an output, '-' not given. Enums are strings and numbers scalars, by name.
#include "jax.h"

#include <cstring>
#include <string>
#include <string_view>

#include "call.h"
#include "xla_ffi.h"

namespace eitri::python {
namespace {

constexpr int kInt32 = 4, kInt64 = 5, kFloat32 = 11, kFloat64 = 12;

DType dtype_of_xla(int type) {
  switch (type) {
    case 2: return DType::i8;
    case kInt32: return DType::i32;
    case kInt64: return DType::i64;
    case 6: return DType::u8;
    case 10: return DType::f16;
    case kFloat32: return DType::f32;
    case 16: return DType::bf16;
    case 19: return DType::f8e5m2;
    case 20: return DType::f8e4m3;
    case 25: return DType::f8e4m3fnuz;
    case 33: return DType::f8e8m0;
    default: return DType::none;
  }
}

class FrameReader {
 public:
  FrameReader(const char* op, const xla::CallFrame& frame) : op_(op), frame_(frame), given_(text("given")) {}

  void tensor(const char* name, View& view) { view = next(name); }
  void optional(const char* name, View& view) { view = next(name); }
  void output(const char* name, View& view, const char* = nullptr) { view = next(name); }
  void optional_output(const char* name, View& view) { view = next(name); }
  void weight(const char* name, View& view) {
    view = next(name);
    if (view.dtype == DType::u8 && view.rank == 1) view = packed_view(view.data, static_cast<size_t>(view.shape[0]));
  }
  void optional_weight(const char* name, View& view) { weight(name, view); }
  void number(const char* name, int64_t& value) { value = static_cast<int64_t>(scalar(name)); }
  void number(const char* name, int& value) { value = static_cast<int>(scalar(name)); }
  void number(const char* name, float& value) { value = static_cast<float>(scalar(name)); }
  template <class E> void choice(const char* name, E& value) {
    const std::string_view wanted = text(name);
    const auto names = enum_names(E{});
    for (size_t i = 0; i < names.size(); ++i)
      if (wanted == names[i]) {
        value = static_cast<E>(i);
        return;
      }
    fail(Code::invalid_argument, str(op_, ": ", name, " is \"", wanted, "\"; expected one that eitri knows"));
  }
  void activation(ActivationParams& p) {
    choice("activation", p.kind);
    number("limit", p.limit);
    number("alpha", p.alpha);
    number("beta", p.beta);
    number("linear_beta", p.linear_beta);
  }

 private:
  View next(const char* name) {
    require(at_ < given_.size(), op_, ": attribute given has ", given_.size(), " letters; expected more");
    const char kind = given_[at_++];
    if (kind == '-') return {};
    const xla::Buffers& buffers = kind == 'o' ? frame_.results : frame_.args;
    int64_t& index = kind == 'o' ? results_ : args_;
    require(index < buffers.size && buffers.types[index] == 1, op_, ": ", name, " is not among the buffers of the call");
    const auto& b = *static_cast<const xla::Buffer*>(buffers.items[index++]);
    View view;
    view.dtype = dtype_of_xla(b.dtype);
    require(view.dtype != DType::none, op_, ": ", name, " has XLA dtype ", b.dtype, "; expected a dtype that eitri knows");
    require(b.rank <= kMaxRank, op_, ": ", name, " has ", b.rank, " dimensions; expected at most ", kMaxRank);
    view.data = b.data;
    view.rank = static_cast<int8_t>(b.rank);
    int64_t step = 1;
    for (int64_t i = b.rank - 1; i >= 0; --i) {
      view.shape[i] = b.dims[i];
      view.stride[i] = step;
      step *= b.dims[i] > 0 ? b.dims[i] : 1;  // of a buffer that exists
    }
    return view;
  }
  const void* attribute(const char* name, int type) const {
    const xla::Attributes& all = frame_.attributes;
    for (int64_t i = 0; i < all.size; ++i)
      if (all.types[i] == type && std::string_view(all.names[i]->data, all.names[i]->size) == name) return all.items[i];
    fail(Code::invalid_argument, str(op_, ": attribute ", name, " is missing or of another kind"));
  }
  std::string_view text(const char* name) const {
    const auto& span = *static_cast<const xla::ByteSpan*>(attribute(name, 4));
    return {span.data, span.size};
  }
  double scalar(const char* name) const {
    const auto& s = *static_cast<const xla::Scalar*>(attribute(name, 3));
    const auto read = [&]<class T>(T value) {
      std::memcpy(&value, s.value, sizeof value);
      return static_cast<double>(value);
    };
    switch (s.dtype) {
      case kInt32: return read(int32_t{});
      case kInt64: return read(int64_t{});
      case kFloat32: return read(float{});
      case kFloat64: return read(double{});
      default:
        fail(Code::invalid_argument, str(op_, ": attribute ", name, " has XLA dtype ", s.dtype, "; expected a 32- or 64-bit number"));
    }
  }
  const char* op_;
  const xla::CallFrame& frame_;
  std::string_view given_;
  size_t at_ = 0;
  int64_t args_ = 0, results_ = 0;
};

xla::Error* error(const xla::CallFrame& frame, Code code, const char* message) {
  const int status = code == Code::invalid_argument ? 3 : code == Code::unsupported ? 12 : code == Code::out_of_memory ? 8 : 13;
  xla::ErrorCreateArgs args{.struct_size = sizeof args, .extension = nullptr, .message = message, .code = status};
  return frame.api->create_error(&args);
}

template <class Op> xla::Error* handle(xla::CallFrame* frame) {
  if (frame->extension != nullptr && frame->extension->type == 1) {
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame->extension)->metadata;
    metadata.api_version = {.struct_size = sizeof(xla::ApiVersion), .extension = nullptr, .major = 0, .minor = 3};
    metadata.traits = 0;
    metadata.state_type = 0;
    return nullptr;
  }
  try {
    typename Op::Args args;
    FrameReader reader(Op::name, *frame);
    Parameters<Op>::walk(reader, args);
    Parameters<Op>::run(args, nullptr);
    return nullptr;
  } catch (const Error& e) {
    return error(*frame, e.code(), e.what());
  } catch (const std::exception& e) {
    return error(*frame, Code::internal, e.what());
  }
}

PyObject* jax_handlers(PyObject*, PyObject*) {
  return guarded([] {
    Ref all = checked(PyDict_New());
    for_each_op([&]<class Op>() {
      const Ref capsule = checked(PyCapsule_New(reinterpret_cast<void*>(static_cast<xla::Handler*>(handle<Op>)), nullptr, nullptr));
      if (PyDict_SetItemString(all.get(), Op::name, capsule.get()) != 0) throw PythonError{};
    });
    return all.release();
  });
}

}  // namespace

void add_jax_methods(std::vector<PyMethodDef>& methods) {
  methods.push_back({"jax_handlers", jax_handlers, METH_NOARGS, "Operator name -> capsule of its XLA handler for CPUs."});
}

}  // namespace eitri::python
