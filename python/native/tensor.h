// From Python objects to Views: torch tensors through DLPack's C exchange API, others by the buffer protocol, DLPack or
// __array_interface__; and new tensors of an object's kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/view.h"
#include "dlpack.h"
#include "eitri/eitri.hpp"
#include "python.h"

namespace eitri::python {

enum class Access : uint8_t { read, write };
/// Whether subclasses of torch.Tensor may mean more than their memory. Behind torch's dispatcher they no longer do.
enum class Wrappers : uint8_t { possible, off };

/// The tensors of one call: reads them, keeps what they borrow until it goes, and knows the stream.
class Tensors {
 public:
  explicit Tensors(const char* op, Wrappers wrappers = Wrappers::possible) : op_(op), wrappers_(wrappers) {}
  ~Tensors();
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  /// None is a View that is not given. Throws Error{invalid_argument}, or PythonError for what the object itself raises.
  View read(PyObject* object, const char* name, Access access);
  /// The same; one dimension of u8 is what pack_weights filled.
  View read_weight(PyObject* object, const char* name);
  /// A tensor without memory as (address, shape, strides, dtype, device type, device index): for checks that read no element. The address
  /// only says which tensors share memory; a f4e2m1 one counts bytes.
  View described(PyObject* description, const char* name) const;
  /// A tensor was met that only torch's dispatcher knows how to serve (a subclass, a fake or meta tensor, tracing): the views are void.
  bool needs_torch() const { return needs_torch_; }
  /// The framework's current stream on the tensors' GPU; null on CPUs.
  Stream stream() const;

 private:
  View of_exchange(PyObject* object, const DlExchange& api, const char* name, Access access, bool is_torch);
  /// A torch tensor that means the negative of what its memory holds, as memory of its own.
  View with_sign(PyObject* object, const char* name, Access access);
  View of_old_torch(PyObject* object, const char* name, Access access);
  void refuse_gradient(PyObject* object, const char* name);
  void refuse_tangent(PyObject* object, const char* name);
  View of_foreign(PyObject* object, const char* name, Access access);
  View of_buffer(PyObject* object, const char* name, Access access, DType explicit_dtype);
  bool of_dlpack(PyObject* object, const char* name, Access access, View& out);
  bool of_array_interface(PyObject* object, const char* name, Access access, View& out);
  View of_dl_tensor(const DlTensor& tensor, const char* name) const;
  DType described_dtype(PyObject* dtype, const char* name) const;
  [[noreturn]] void refuse_dtype(const std::string& got, const char* name) const;
  void look_at_torch();

  struct Held {
    Py_buffer buffer = {};
    Ref object;
  };
  const char* op_;
  Wrappers wrappers_;
  DType meant_ = DType::none;  // of the typed array that is being read
  bool needs_torch_ = false, looked_at_torch_ = false, grad_enabled_ = false, tangents_ = false;
  const DlExchange* api_ = nullptr;
  DeviceId gpu_ = {};
  Stream foreign_stream_ = nullptr;
  std::vector<std::unique_ptr<Held>> held_;
};

/// "bf16", torch.bfloat16, numpy.float32, … Throws Error{invalid_argument} with the known names; op may be null where nobody knows it.
DType dtype_of(PyObject* object, const char* op, const char* arg);
/// An uninitialised, row-major tensor of the kind and device of `like`; dtype none: its dtype.
PyObject* empty(PyObject* like, PyObject* shape, PyObject* dtype);

}  // namespace eitri::python
