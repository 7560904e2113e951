#include "ops/quantize/tensor_check.h"

namespace eitri {

namespace {

bool is_wanted(DType got, DType wanted) {
  if (wanted != DType::none) return got == wanted;
  return got == DType::f32 || got == DType::bf16 || got == DType::f16;
}

std::string wanted_text(DType dtype, std::initializer_list<int64_t> shape) {
  std::string text = dtype == DType::none ? "f32, bf16 or f16 [" : str(dtype, "[");
  const char* comma = "";
  for (int64_t extent : shape) {
    text += extent == kAnyExtent ? str(comma, "any") : str(comma, extent);
    comma = ", ";
  }
  return text + "] with inner stride 1";
}

}  // namespace

void detail::check_tensor_fully(const View& view, const char* op, const char* arg, Access access, DType dtype,
                                std::initializer_list<int64_t> shape) {
  const int rank = static_cast<int>(shape.size());
  if (access == Access::write) check_output(view, op, arg, rank);
  else check_view(view, op, arg, rank);
  bool ok = is_wanted(view.dtype, dtype) && view.layout == Layout::strided && has_unit_inner_stride(view);
  int i = 0;
  for (int64_t extent : shape) ok = (extent == kAnyExtent || view.shape[i] == extent) && ok, ++i;
  if (!ok) [[unlikely]]
    fail(Code::invalid_argument, str(op, ": ", arg, " is ", view, "; expected ", wanted_text(dtype, shape)));
}

void check_apart(const View& output, const char* output_name, const View& other, const char* other_name, const char* op) {
  require(!other.given() || !overlap(output, other), op, ": ", output_name, " is ", output, ", which shares memory with ", other_name,
          "; expected memory of its own");
}

}  // namespace eitri
