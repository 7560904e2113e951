#include "base/str.h"

#include <charconv>

namespace eitri {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::none: return "none";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::f8e4m3: return "f8e4m3";
    case DType::f8e4m3fnuz: return "f8e4m3fnuz";
    case DType::f8e5m2: return "f8e5m2";
    case DType::f8e8m0: return "f8e8m0";
    case DType::f4e2m1: return "f4e2m1";
    case DType::i4: return "i4";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
  }
  return "unknown dtype";  // the C ABI can hand us any byte
}

std::string_view to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid_argument: return "invalid_argument";
    case Code::unsupported: return "unsupported";
    case Code::compile_failed: return "compile_failed";
    case Code::device_error: return "device_error";
    case Code::out_of_memory: return "out_of_memory";
    case Code::io_error: return "io_error";
    case Code::internal: return "internal";
  }
  return "unknown code";
}

std::string to_string(DeviceId device) {
  static constexpr const char* kKinds[] = {"cpu", "cuda", "hip"};
  const auto kind = static_cast<size_t>(device.kind);
  if (kind >= std::size(kKinds)) return str("device kind number ", kind);
  return device.kind == DeviceKind::cpu ? "cpu" : str(kKinds[kind], ":", device.index);
}

std::string to_string(const View& view) {
  if (!view.given()) return "none";
  std::string out(to_string(view.dtype));
  // Messages about broken views pass through here too, so nothing in the view is trusted.
  if (view.rank < 0 || view.rank > kMaxRank) return str(out, "[rank ", view.rank, "]");

  const auto list = [&](const int64_t(&values)[kMaxRank]) {
    out += '[';
    for (int i = 0; i < view.rank; ++i) {
      if (i > 0) out += ", ";
      detail::append(out, static_cast<long long>(values[i]));
    }
    out += ']';
  };
  list(view.shape);
  if (view.layout == Layout::packed) return out + " packed";

  bool row_major = true, empty = false;
  int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    empty |= view.shape[i] == 0;
    row_major &= view.shape[i] == 1 || view.stride[i] == step;
    if (__builtin_mul_overflow(step, view.shape[i], &step)) step = 0;
  }
  if (!row_major && !empty) {
    out += " strides ";
    list(view.stride);
  }
  return out;
}

namespace detail {

namespace {
template <class T> void append_chars(std::string& out, T value) {
  char buffer[32];  // the shortest form of a double has at most 24 characters
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  out.append(buffer, result.ptr);
}
}  // namespace

void append(std::string& out, std::string_view text) { out += text; }
void append(std::string& out, long long value) { append_chars(out, value); }
void append(std::string& out, unsigned long long value) { append_chars(out, value); }
void append(std::string& out, float value) { append_chars(out, value); }
void append(std::string& out, double value) { append_chars(out, value); }

}  // namespace detail

}  // namespace eitri
