// How each kind of object is read. The path of plain torch tensors allocates nothing and calls no Python code.
#include "tensor.h"

#include <dlfcn.h>

#include <cstring>
#include <memory>

#include "api/dlpack.h"
#include "base/error.h"

namespace eitri::python {
namespace {

/// What is known about a Python type; asked once per type.
struct TypeInfo {
  enum class Kind : uint8_t { foreign, exchange, torch, torch_by_dlpack, torch_subclass, typed, masked };  // by_dlpack: before 2.10
  PyTypeObject* type = nullptr;                                                                            // kept alive by a reference
  Kind kind = Kind::foreign;
  const DlExchange* api = nullptr;
};

Ref module_if_loaded(const char* name) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), name);
  Py_XINCREF(module);
  return Ref(module);
}

Ref attribute(const Ref& object, const char* name) {
  if (!object) return {};
  Ref value(PyObject_GetAttrString(object.get(), name));
  if (!value) PyErr_Clear();
  return value;
}

const DlExchange* exchange_of(PyObject* owner) {
  Ref capsule(PyObject_GetAttrString(owner, "__dlpack_c_exchange_api__"));
  if (!capsule) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  // A newer major version may have another layout; older ones are chained.
  while (api != nullptr && api->version.major != 1) api = api->previous;
  return api;  // static storage by the contract
}

TypeInfo resolve(PyTypeObject* type) {
  TypeInfo info{.type = type};
  auto* object = reinterpret_cast<PyObject*>(type);
  const Ref torch = module_if_loaded("torch");
  const Ref tensor = attribute(torch, "Tensor");
  const Ref parameter = attribute(attribute(torch, "nn"), "Parameter");
  const Ref typed = attribute(module_if_loaded("eitri._arrays"), "Typed");
  const Ref masked = attribute(module_if_loaded("numpy.ma"), "MaskedArray");
  if (tensor && (object == tensor.get() || (parameter && object == parameter.get()))) {
    info.api = exchange_of(object);
    info.kind = info.api != nullptr ? TypeInfo::Kind::torch : TypeInfo::Kind::torch_by_dlpack;
  } else if (tensor && PyObject_IsSubclass(object, tensor.get()) == 1) {
    info.kind = TypeInfo::Kind::torch_subclass;
    info.api = exchange_of(object);
  } else if (typed && object == typed.get()) {
    info.kind = TypeInfo::Kind::typed;
  } else if (masked && PyObject_IsSubclass(object, masked.get()) == 1) {
    info.kind = TypeInfo::Kind::masked;
  } else if (const Ref own(PyObject_GetAttrString(object, "__dict__")); own) {
    // Subclasses inherit the attribute without meaning it: only a type that has it itself is taken at its word.
    if (PyMapping_HasKeyString(own.get(), "__dlpack_c_exchange_api__") == 1) info.api = exchange_of(object);
    if (info.api != nullptr) info.kind = TypeInfo::Kind::exchange;
  }
  PyErr_Clear();
  return info;
}

const TypeInfo& type_info(PyTypeObject* type) {
  static TypeInfo known[8];  // under the GIL; more types than these are resolved each time
  static size_t count = 0;
  for (size_t i = 0; i < count; ++i)
    if (known[i].type == type) return known[i];
  static TypeInfo last;
  last = resolve(type);
  if (count == std::size(known)) return last;
  Py_INCREF(reinterpret_cast<PyObject*>(type));
  return known[count++] = last;
}

/// torch's state that a call must respect. Read from C where this torch has the functions.
struct Torch {
  bool (*grad_mode)() = nullptr;
  void* const* (*tracing)() = nullptr;  // a shared pointer to the state of torch.jit.trace, which records only what torch dispatches
  Ref is_grad_enabled, modes;           // modes: how many dispatch modes are active
  Ref forward_ad;                       // the dict of torch.autograd.forward_ad
  int64_t (*count_modes)() = nullptr;   // the same by torch's own function, where it has that name
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
  PyObject* current_level = PyUnicode_InternFromString("_current_level");
  Ref gradient_getter;  // the descriptor of Tensor.requires_grad, and how to call it without looking it up
  descrgetfunc get_gradient = nullptr;
  bool (*impl_has_gradient)(const void*) = nullptr;  // what the getter asks in the end
  mutable ptrdiff_t impl_at = 0;                     // where a Python tensor has the pointer to its impl; 0: not known yet, -1: unknown

  Torch() {
    const Ref torch = module_if_loaded("torch");
    is_grad_enabled = attribute(torch, "is_grad_enabled");
    modes = attribute(attribute(torch, "_C"), "_len_torch_dispatch_stack");
    forward_ad = attribute(attribute(attribute(torch, "autograd"), "forward_ad"), "__dict__");
    gradient_getter = attribute(attribute(attribute(torch, "_C"), "TensorBase"), "requires_grad");
    if (gradient_getter) get_gradient = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(gradient_getter.get()), Py_tp_descr_get));
    PyErr_Clear();  // Python 3.9 has no slots of its own types
    if (void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY); library != nullptr) {
      grad_mode = reinterpret_cast<bool (*)()>(dlsym(library, "aoti_torch_grad_mode_is_enabled"));
      tracing = reinterpret_cast<void* const* (*)()>(dlsym(library, "_ZN5torch3jit6tracer15getTracingStateEv"));
    }
    if (void* core = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY); core != nullptr) {
      count_modes = reinterpret_cast<int64_t (*)()>(dlsym(core, "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv"));
      impl_has_gradient = reinterpret_cast<bool (*)(const void*)>(dlsym(core, "_ZNK3c1010TensorImpl13requires_gradEv"));
    }
  }
  static const void* pointer_at(PyObject* object, ptrdiff_t offset) {
    const void* pointer = nullptr;
    std::memcpy(&pointer, reinterpret_cast<const char*>(object) + offset, sizeof pointer);
    return pointer;
  }
  /// Right behind the object's header, in every torch so far. It is taken only where `_cdata`, the same pointer as a number, agrees.
  static ptrdiff_t find_impl(PyObject* tensor) {
    const Ref number(PyObject_GetAttrString(tensor, "_cdata"));
    const void* impl = number ? PyLong_AsVoidPtr(number.get()) : nullptr;
    PyErr_Clear();
    for (const size_t offset : {sizeof(PyObject), sizeof(PyObject) + sizeof(void*)})
      if (impl != nullptr && pointer_at(tensor, static_cast<ptrdiff_t>(offset)) == impl) return static_cast<ptrdiff_t>(offset);
    return -1;
  }
  bool grad_enabled() const {
    if (grad_mode != nullptr) return grad_mode();
    const Ref on = checked(PyObject_CallNoArgs(is_grad_enabled.get()));
    return on.get() == Py_True;
  }
  /// A level of forward-mode differentiation is open: tensors may have tangents, of which their memory says nothing.
  bool has_tangents() const {
    if (!forward_ad) return false;
    PyObject* level = PyDict_GetItemWithError(forward_ad.get(), current_level);  // -1: none
    return level != nullptr && PyLong_AsLong(level) >= 0;
  }
  bool traced() const {
    if (tracing != nullptr && *tracing() != nullptr) return true;
    if (count_modes != nullptr) return count_modes() != 0;
    if (!modes) return false;
    const Ref count = checked(PyObject_CallNoArgs(modes.get()));
    return PyLong_AsLong(count.get()) != 0;
  }
  bool has_gradient(PyObject* tensor) const {
    if (impl_at == 0) impl_at = impl_has_gradient != nullptr ? find_impl(tensor) : -1;
    if (impl_at > 0) return impl_has_gradient(pointer_at(tensor, impl_at));
    const Ref flag =
        checked(get_gradient != nullptr ? get_gradient(gradient_getter.get(), tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor)))
                                        : PyObject_GetAttr(tensor, requires_grad));
    return flag.get() == Py_True;
  }
};
const Torch& torch_state() {
  static const Torch* const torch = new Torch;  // lives as long as the interpreter
  return *torch;
}

/// The first line: torch appends its C++ stack.
std::string taken_message() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  const Ref t(type), v(value), tb(traceback);
  const Ref text(value == nullptr ? nullptr : PyObject_Str(value));
  const Ref bytes(text ? PyUnicode_AsUTF8String(text.get()) : nullptr);
  PyErr_Clear();
  const std::string message = bytes ? PyBytes_AsString(bytes.get()) : "unknown error";
  return message.substr(0, message.find('\n'));
}

std::string type_name(PyObject* object) {
  const Ref type(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__qualname__"));
  const Ref bytes(type ? PyUnicode_AsUTF8String(type.get()) : nullptr);
  PyErr_Clear();
  return bytes ? PyBytes_AsString(bytes.get()) : "object";
}

DType dtype_of_format(const char* format, Py_ssize_t bytes) {
  if (format == nullptr) return bytes == 1 ? DType::u8 : DType::none;
  if (std::strchr("<=@", *format) != nullptr && *format != 0) ++format;
  if (std::strlen(format) != 1) return DType::none;
  const auto is = [&](const char* any) { return std::strchr(any, *format) != nullptr; };
  if (is("f") && bytes == 4) return DType::f32;
  if (is("e") && bytes == 2) return DType::f16;
  if (is("b") && bytes == 1) return DType::i8;
  if (is("B") && bytes == 1) return DType::u8;
  if (is("ilq") && bytes == 4) return DType::i32;
  if (is("ilq") && bytes == 8) return DType::i64;
  return DType::none;
}

/// Whether torch means the negative of what the memory holds: the imaginary part of a conjugate, of which no two elements are side by side.
bool is_negated(PyObject* tensor, const View& view) {
  if ((view.dtype != DType::f32 && view.dtype != DType::f16) || (is_contiguous(view) && view.size() != 1)) return false;
  const Ref answer = checked(PyObject_CallMethod(tensor, "is_neg", nullptr));
  return answer.get() == Py_True;
}

/// A view of bytes as one of 4-bit elements: a byte holds two neighbours.
void as_pairs(View& view) {
  for (int i = 0; i + 1 < view.rank; ++i) view.stride[i] *= 2;
  if (view.rank == 0) return;
  if (view.shape[view.rank - 1] == 1) view.stride[view.rank - 1] = 1;  // of one byte it meant nothing
  view.shape[view.rank - 1] *= 2;
}

}  // namespace

Tensors::~Tensors() {
  for (const auto& held : held_)
    if (held->buffer.obj != nullptr) PyBuffer_Release(&held->buffer);
}

void Tensors::look_at_torch() {
  looked_at_torch_ = true;
  grad_enabled_ = torch_state().grad_enabled();
  if (wrappers_ == Wrappers::possible && torch_state().traced()) needs_torch_ = true;
  tangents_ = torch_state().has_tangents();
}

View Tensors::read(PyObject* object, const char* name, Access access) {
  if (object == Py_None) return {};
  const TypeInfo& info = type_info(Py_TYPE(object));
  switch (info.kind) {
    case TypeInfo::Kind::torch: return of_exchange(object, *info.api, name, access, true);
    case TypeInfo::Kind::exchange: return of_exchange(object, *info.api, name, access, false);
    case TypeInfo::Kind::torch_subclass:
      if (wrappers_ == Wrappers::off)
        return info.api != nullptr ? of_exchange(object, *info.api, name, access, true) : of_old_torch(object, name, access);
      needs_torch_ = true;
      return {};
    case TypeInfo::Kind::typed: {
      const Ref array = checked(PyObject_GetAttrString(object, "array")), dtype = checked(PyObject_GetAttrString(object, "dtype"));
      const DType meant = dtype_of(dtype.get(), op_, name);
      if (PyObject_CheckBuffer(array.get()) == 1) return of_buffer(array.get(), name, access, meant);
      meant_ = meant;
      View view = read(array.get(), name, access);
      meant_ = DType::none;
      const int width = is_packed(meant) ? 8 : bits(meant);
      require(needs_torch_ || bits(view.dtype) == width, op_, ": ", name, " has elements of ", bits(view.dtype), " bits; expected ", width,
              " (", meant, ")");
      view.dtype = meant;
      if (is_packed(meant)) as_pairs(view);
      return view;
    }
    case TypeInfo::Kind::torch_by_dlpack: return of_old_torch(object, name, access);
    case TypeInfo::Kind::masked:
      fail(Code::invalid_argument, str(op_, ": ", name, " is a masked array; expected one without a mask, such as its .filled() or .data"));
    case TypeInfo::Kind::foreign: break;
  }
  return of_foreign(object, name, access);
}

View Tensors::read_weight(PyObject* object, const char* name) {
  View view = read(object, name, Access::read);
  if (view.dtype != DType::u8 || view.rank != 1) return view;
  try {
    const DeviceId device = view.device;
    require(device.kind == DeviceKind::cpu, "packed weights are for CPUs; these are on ", device);
    require(view.shape[0] <= 1 || view.stride[0] == 1, "its elements are ", view.stride[0], " apart; expected one after the other");
    return packed_view(view.data, static_cast<size_t>(view.shape[0]));
  } catch (const Error& error) {
    fail(error.code(), str(op_, ": ", name, " is u8, taken as packed weights: ", error.what()));
  }
}

View Tensors::of_exchange(PyObject* object, const DlExchange& api, const char* name, Access access, bool is_torch) {
  DlTensor tensor;
  if (is_torch && !looked_at_torch_) look_at_torch();
  if (api.view_of(object, &tensor) != 0) [[unlikely]] {
    // torch: no storage (sparse, meta, inside vmap). Its dispatcher serves the call or says why not.
    const std::string why = taken_message();
    require(is_torch, op_, ": ", name, " cannot be read: ", why);
    needs_torch_ = true;
    return {};
  }
  if (is_torch && grad_enabled_) refuse_gradient(object, name);
  if (is_torch && tangents_) [[unlikely]]
    refuse_tangent(object, name);
  const View view = of_dl_tensor(tensor, name);
  if (is_torch && view.data == nullptr && view.size() != 0) needs_torch_ = true;  // fake or functional
  if (is_torch && !needs_torch_ && is_negated(object, view)) [[unlikely]]
    return with_sign(object, name, access);
  if (view.device.kind != DeviceKind::cpu) {
    api_ = &api;
    gpu_ = view.device;
  }
  return view;
}

DType Tensors::described_dtype(PyObject* dtype, const char* name) const {
  const Ref spelled = checked(PyObject_Str(dtype));
  const std::string text = text_of(spelled.get());
  try {
    return dtype_of(dtype, op_, name);
  } catch (const Error&) {  // in the words of a tensor with memory, of which DLPack says the dtype
    const std::string known = text.rfind("torch.", 0) == 0 ? text.substr(6) : text;
    refuse_dtype(str("dtype ", known == "bool" ? "bool8" : known), name);
  }
}

View Tensors::described(PyObject* description, const char* name) const {
  if (description == Py_None) return {};
  unsigned long long address = 0;
  PyObject *shape = nullptr, *strides = nullptr, *dtype = nullptr;
  const char* kind = nullptr;
  int index = 0;
  if (PyArg_ParseTuple(description, "KOOOsi", &address, &shape, &strides, &dtype, &kind, &index) == 0) throw PythonError{};
  View view;
  const std::string_view type = kind;
  require(type == "cpu" || type == "cuda" || type == "hip", op_, ": ", name, " is on ", type, "; expected CPU, CUDA or ROCm");
  view.device = {type == "cpu" ? DeviceKind::cpu : type == "cuda" ? DeviceKind::cuda : DeviceKind::hip, index};
  view.dtype = described_dtype(dtype, name);
  view.data = reinterpret_cast<void*>(address);
  const Py_ssize_t rank = PyTuple_Size(shape);
  if (rank < 0) throw PythonError{};
  require(rank <= kMaxRank, op_, ": ", name, " has ", rank, " dimensions; expected at most ", kMaxRank);
  view.rank = static_cast<int8_t>(rank);
  for (Py_ssize_t i = 0; i < rank; ++i) {
    view.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    view.stride[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
  }
  if (PyErr_Occurred() != nullptr) throw PythonError{};
  if (is_packed(view.dtype)) as_pairs(view);
  return view;
}

void Tensors::refuse_gradient(PyObject* object, const char* name) {
  if (!looked_at_torch_) look_at_torch();
  if (!grad_enabled_) return;
  require(!torch_state().has_gradient(object), op_, ": ", name,
          " requires grad; expected a tensor that does not, or torch.no_grad() (eitri's operators have no gradient)");
}

void Tensors::refuse_tangent(PyObject* object, const char* name) {
  const Ref module = checked(PyImport_ImportModule("eitri.torch_ops"));
  const Ref has = checked(PyObject_CallMethod(module.get(), "has_tangent", "O", object));
  require(has.get() != Py_True, op_, ": ", name,
          " has a tangent (forward-mode differentiation); expected a tensor without (eitri's operators have no gradient)");
}

View Tensors::with_sign(PyObject* object, const char* name, Access access) {
  require(access == Access::read, op_, ": ", name,
          " has its negative bit set (an imaginary part of a conjugate); expected a tensor without");
  held_.push_back(std::make_unique<Held>());
  held_.back()->object = checked(PyObject_CallMethod(object, "resolve_neg", nullptr));
  return read(held_.back()->object.get(), name, access);
}

View Tensors::of_old_torch(PyObject* object, const char* name, Access access) {
  refuse_gradient(object, name);
  if (tangents_) refuse_tangent(object, name);
  Ref plain = checked(PyObject_CallMethod(object, "detach", nullptr));  // __dlpack__ looks at requires_grad in every mode
  View view;
  try {
    // Such a torch exports no floats of 8 and 4 bits: their bytes, then.
    const Ref dtype = checked(PyObject_GetAttrString(object, "dtype")), spelled = checked(PyObject_Str(dtype.get()));
    const std::string text = text_of(spelled.get());
    const bool narrow = text.rfind("torch.float8", 0) == 0 || text.rfind("torch.float4", 0) == 0;
    if (narrow) {
      const Ref byte = checked(PyObject_GetAttrString(module_if_loaded("torch").get(), "uint8"));
      plain = checked(PyObject_CallMethod(plain.get(), "view", "O", byte.get()));
    }
    of_dlpack(plain.get(), name, access, view);
    if (narrow) view.dtype = dtype_of(dtype.get(), op_, name);
    if (is_packed(view.dtype)) as_pairs(view);
    if (is_negated(plain.get(), view)) view = with_sign(object, name, access);
  } catch (const PythonError&) {
    const std::string why = taken_message();
    require(wrappers_ == Wrappers::possible, op_, ": ", name, " cannot be read: ", why);
    needs_torch_ = true;  // its dispatcher serves the call or says why not
  }
  return view;
}

void Tensors::refuse_dtype(const std::string& got, const char* name) const {
  fail(Code::invalid_argument, str(op_, ": ", name, " has ", got, "; expected f32, f16, bf16, an fp8 type, f4e2m1, i8, u8, i32 or i64"));
}

View Tensors::of_dl_tensor(const DlTensor& t, const char* name) const {
  View view;
  switch (t.device.type) {
    case 1:
    case 3: break;
    case 2: view.device = {DeviceKind::cuda, t.device.id}; break;
    case 10: view.device = {DeviceKind::hip, t.device.id}; break;
    default:
      fail(Code::invalid_argument, str(op_, ": ", name, " is on DLPack device type ", t.device.type, "; expected CPU, CUDA or ROCm"));
  }
  require(t.ndim <= kMaxRank, op_, ": ", name, " has ", t.ndim, " dimensions; expected at most ", kMaxRank);
  view.dtype = dtype_of_dlpack(t.dtype.code, t.dtype.bits);
  // Integers that are to be read as something else need be none of ours.
  if (view.dtype == DType::none && meant_ != DType::none && t.dtype.code <= 1 && t.dtype.bits == bits(meant_)) view.dtype = meant_;
  // A packed pair of 4-bit elements may be one element with two lanes.
  const bool pairs = t.dtype.lanes == 2 && t.dtype.bits == 4;
  if (view.dtype == DType::none || (t.dtype.lanes != 1 && !pairs)) [[unlikely]] {
    static constexpr const char* kKinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    const bool known = t.dtype.code < std::size(kKinds) && t.dtype.lanes == 1;
    const std::string got =
        known ? str("dtype ", kKinds[t.dtype.code], int{t.dtype.bits})
              : str("DLPack dtype (code ", int{t.dtype.code}, ", ", int{t.dtype.bits}, " bits, ", t.dtype.lanes, " lanes)");
    refuse_dtype(got, name);
  }
  view.data = t.data == nullptr ? nullptr : static_cast<std::byte*>(t.data) + t.byte_offset;
  view.rank = static_cast<int8_t>(t.ndim);
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    view.shape[i] = t.shape[i];
    view.stride[i] = t.strides != nullptr ? t.strides[i] : step;
    if (__builtin_mul_overflow(step, t.shape[i] > 0 ? t.shape[i] : 1, &step)) step = int64_t{1} << 62;  // refused by the checks
    if (pairs && i == t.ndim - 1) view.shape[i] *= 2;
    else if (pairs) view.stride[i] *= 2;
  }
  return view;
}

View Tensors::of_foreign(PyObject* object, const char* name, Access access) {
  View view;
  if (PyObject_CheckBuffer(object) == 1) {
    Py_buffer probe = {};
    if (PyObject_GetBuffer(object, &probe, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
      PyBuffer_Release(&probe);
      return of_buffer(object, name, access, DType::none);
    }
    PyErr_Clear();  // NumPy has no buffer for dtypes of other packages
    if (of_array_interface(object, name, access, view)) return view;
  }
  if (of_dlpack(object, name, access, view)) return view;
  fail(Code::invalid_argument, str(op_, ": ", name, " is a ", type_name(object),
                                   "; expected a tensor: torch, NumPy, or anything with the buffer protocol or __dlpack__"));
}

View Tensors::of_buffer(PyObject* object, const char* name, Access access, DType explicit_dtype) {
  held_.push_back(std::make_unique<Held>());
  Py_buffer& b = held_.back()->buffer;
  if (PyObject_GetBuffer(object, &b, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    b.obj = nullptr;
    const std::string why = taken_message();
    fail(Code::invalid_argument, str(op_, ": ", name, " cannot be read: ", why));
  }
  require(access == Access::read || b.readonly == 0, op_, ": ", name, " is read-only; expected an array that can be written");
  require(b.ndim <= kMaxRank, op_, ": ", name, " has ", b.ndim, " dimensions; expected at most ", kMaxRank);
  View view;
  view.dtype = explicit_dtype;
  if (explicit_dtype == DType::none) {
    view.dtype = dtype_of_format(b.format, b.itemsize);
    require(view.dtype != DType::none, op_, ": ", name, " has buffer format \"", b.format == nullptr ? "" : b.format, "\" of ", b.itemsize,
            " bytes; expected float32, float16, int8, uint8, int32 or int64, or eitri.typed(array, dtype) for the others");
  } else if (b.itemsize > 1 && b.format != nullptr && (*b.format == '>' || *b.format == '!')) {
    fail(Code::invalid_argument,
         str(op_, ": ", name, " has buffer format \"", b.format, "\"; expected elements in the machine's byte order"));
  } else if (is_packed(explicit_dtype)) {
    require(b.itemsize == 1, op_, ": ", name, " has elements of ", b.itemsize, " bytes; expected 1 (two of ", explicit_dtype, ")");
  } else {
    require(bits(explicit_dtype) == 8 * b.itemsize, op_, ": ", name, " has elements of ", b.itemsize, " bytes; expected ",
            bits(explicit_dtype) / 8.0, " (", explicit_dtype, ")");
  }
  view.data = b.buf;
  view.rank = static_cast<int8_t>(b.ndim);
  for (int i = 0; i < b.ndim; ++i) {
    view.shape[i] = b.shape[i];
    require(b.itemsize != 0 && b.strides[i] % b.itemsize == 0, op_, ": ", name, " has a stride of ", b.strides[i],
            " bytes; expected a multiple of its element's ", b.itemsize);
    view.stride[i] = b.strides[i] / b.itemsize;
  }
  if (is_packed(view.dtype)) as_pairs(view);
  return view;
}

bool Tensors::of_array_interface(PyObject* object, const char* name, Access access, View& view) {
  // ml_dtypes: NumPy arrays whose dtype has a name that we know and opaque elements. Seen as bytes they have a buffer.
  const Ref dtype(PyObject_GetAttrString(object, "dtype"));
  if (!dtype) {
    PyErr_Clear();
    return false;
  }
  const Ref width = checked(PyObject_GetAttrString(dtype.get(), "itemsize"));
  const char* integer = PyLong_AsLong(width.get()) == 1 ? "uint8" : "uint16";
  const Ref plain = checked(PyObject_CallMethod(object, "view", "s", integer));
  view = of_buffer(plain.get(), name, access, dtype_of(dtype.get(), op_, name));
  return true;
}

bool Tensors::of_dlpack(PyObject* object, const char* name, Access access, View& view) {
  const Ref method(PyObject_GetAttrString(object, "__dlpack__"));
  if (!method) {
    PyErr_Clear();
    return false;
  }
  // The Python side knows the framework's streams and its DLPack version: (capsule, stream as an integer or None).
  const Ref arrays = checked(PyImport_ImportModule("eitri._arrays"));
  const Ref answer = checked(PyObject_CallMethod(arrays.get(), "exported", "Os", object, access == Access::write ? "write" : "read"));
  PyObject *capsule = nullptr, *stream = nullptr;
  if (PyArg_ParseTuple(answer.get(), "OO", &capsule, &stream) == 0) throw PythonError{};
  const DlTensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
    const auto* managed = static_cast<const DlManagedVersioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    require(managed->version.major == 1, op_, ": ", name, " exports DLPack ", managed->version.major, "; expected 1");
    require(access == Access::read || (managed->flags & 1) == 0, op_, ": ", name, " is read-only; expected one that can be written");
    tensor = &managed->tensor;
  } else {
    require(PyCapsule_IsValid(capsule, "dltensor") != 0, op_, ": ", name, " gives a ", type_name(capsule),
            " from __dlpack__; expected a capsule that nobody has used");
    tensor = &static_cast<const DlManaged*>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
  }
  Py_INCREF(capsule);  // unconsumed: its destructor gives the tensor back
  held_.push_back(std::make_unique<Held>());
  held_.back()->object = Ref(capsule);
  view = of_dl_tensor(*tensor, name);
  if (view.device.kind != DeviceKind::cpu) {
    gpu_ = view.device;
    if (stream != Py_None) foreign_stream_ = PyLong_AsVoidPtr(stream);
  }
  return true;
}

Stream Tensors::stream() const {
  if (gpu_.kind == DeviceKind::cpu) return nullptr;
  if (api_ == nullptr) return foreign_stream_;
  void* stream = nullptr;
  if (api_->current_stream(gpu_.kind == DeviceKind::cuda ? 2 : 10, gpu_.index, &stream) != 0) throw PythonError{};
  return stream;
}

namespace {

/// torch's allocator, its caches included, without a call of Python code. Null: not that kind of object.
PyObject* empty_by_exchange(PyObject* like, PyObject* shape, PyObject* dtype) {
  const TypeInfo& info = type_info(Py_TYPE(like));
  if (info.kind != TypeInfo::Kind::torch && info.kind != TypeInfo::Kind::exchange) return nullptr;
  if (info.kind == TypeInfo::Kind::torch && torch_state().traced()) return nullptr;
  DlTensor prototype;
  if (info.api->view_of(like, &prototype) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  if (prototype.data == nullptr)
    for (int i = 0;; ++i) {
      if (i == prototype.ndim) return nullptr;  // fake
      if (prototype.shape[i] == 0) break;
    }
  if (dtype != Py_None) {
    const DlpackType row = dlpack_of_dtype(dtype_of(dtype, nullptr, "out_dtype"));
    prototype.dtype = {row.code, row.bits, 1};
  }
  if (prototype.dtype.bits < 8) return nullptr;
  int64_t extents[kMaxRank];
  const Py_ssize_t rank = PyTuple_Size(shape);
  if (rank < 0) throw PythonError{};
  require(rank <= kMaxRank, "empty: shape has ", rank, " dimensions; expected at most ", kMaxRank);
  for (Py_ssize_t i = 0; i < rank; ++i) {
    extents[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (extents[i] == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
  }
  prototype.shape = extents;
  prototype.strides = nullptr;
  prototype.ndim = static_cast<int32_t>(rank);
  prototype.data = nullptr;
  prototype.byte_offset = 0;
  struct Report {
    std::string text;
  } report;
  DlManagedVersioned* managed = nullptr;
  const auto say = [](void* context, const char*, const char* text) { static_cast<Report*>(context)->text = text; };
  if (info.api->allocate(&prototype, &managed, &report, say) != 0) {
    PyErr_Clear();
    fail(Code::out_of_memory, str("empty: ", report.text.substr(0, report.text.find('\n'))));
  }
  void* object = nullptr;
  if (info.api->object_of(managed, &object) != 0) throw PythonError{};
  return static_cast<PyObject*>(object);
}

}  // namespace

PyObject* empty(PyObject* like, PyObject* shape, PyObject* dtype) {
  if (PyObject* made = empty_by_exchange(like, shape, dtype); made != nullptr) return made;
  const Ref arrays = checked(PyImport_ImportModule("eitri._arrays"));
  const Ref name = dtype == Py_None ? Ref() : checked(PyUnicode_FromString(str(dtype_of(dtype, nullptr, "out_dtype")).c_str()));
  return checked(PyObject_CallMethod(arrays.get(), "empty", "OOO", like, shape, name ? name.get() : Py_None)).release();
}

}  // namespace eitri::python
