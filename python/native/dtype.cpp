// The names by which frameworks call our dtypes.
#include <string>

#include "base/error.h"
#include "tensor.h"

namespace eitri::python {

DType dtype_of(PyObject* object, const char* op, const char* arg) {
  struct Alias {
    const char* name;
    DType dtype;
  };
  static constexpr Alias kAliases[] = {{"float32", DType::f32},
                                       {"float16", DType::f16},
                                       {"half", DType::f16},
                                       {"bfloat16", DType::bf16},
                                       {"float8_e4m3fn", DType::f8e4m3},
                                       {"float8_e4m3fnuz", DType::f8e4m3fnuz},
                                       {"float8_e5m2", DType::f8e5m2},
                                       {"float8_e8m0fnu", DType::f8e8m0},
                                       {"float4_e2m1fn_x2", DType::f4e2m1},
                                       {"int8", DType::i8},
                                       {"uint8", DType::u8},
                                       {"int32", DType::i32},
                                       {"int64", DType::i64}};
  std::string text;
  if (PyUnicode_Check(object)) {
    text = text_of(object);
  } else {  // numpy.float32 has __name__, numpy.dtype has name, str(torch.float32) is "torch.float32"
    Ref name(PyType_Check(object) ? PyObject_GetAttrString(object, "__name__") : PyObject_Str(object));
    if (!name) throw PythonError{};
    text = text_of(name.get());
  }
  if (text.rfind("torch.", 0) == 0) text = text.substr(6);
  if (const auto known = dtype_from(text)) return *known;
  for (const Alias& alias : kAliases)
    if (text == alias.name) return alias.dtype;
  std::string names;
  for (const DType dtype : all_dtypes()) names += str(names.empty() ? "" : ", ", dtype);
  fail(Code::invalid_argument,
       str(op == nullptr ? "" : str(op, ": "), arg, " is \"", text, "\"; expected a dtype of torch or NumPy, or one of ", names));
}

}  // namespace eitri::python
