#include "jit/user_op_source.h"

#include <algorithm>

#include "base/error.h"

namespace eitri::jit {

namespace {

/// Argument must be as UserOp::Argument is. Conversions of 16-bit floats round to nearest, ties to even, and keep NaN.
constexpr std::string_view kPrelude = R"(#pragma once
#include <cstdint>
#include <cstring>

namespace eitri_user {

struct Argument {
  void* data;
  int64_t shape[4];
  int64_t stride[4];
  double real;
  int64_t integer;
};

inline uint32_t bits_of(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
inline float float_of(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

struct bf16 {
  uint16_t bits;
  bf16() = default;
  bf16(float x) {
    const uint32_t u = bits_of(x);
    bits = (u & 0x7fffffff) > 0x7f800000 ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  operator float() const { return float_of(uint32_t(bits) << 16); }
};

struct f16 {
  uint16_t bits;
  f16() = default;
  f16(float x) {
    const uint32_t u = bits_of(x), a = u & 0x7fffffff;
    const uint16_t sign = uint16_t((u >> 16) & 0x8000);
    if (a > 0x7f800000) bits = uint16_t(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    else if (a >= 0x477ff000) bits = uint16_t(sign | 0x7c00);  // rounds to 2^16 or more
    else if (a < 0x38800000) bits = uint16_t(sign | uint16_t(bits_of(float_of(a) + 0.5f) - 0x3f000000));  // subnormal
    else bits = uint16_t(sign | uint16_t((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
  }
  operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, a = bits & 0x7fff;
    if (a >= 0x7c00) return float_of(sign | 0x7f800000 | (a & 0x3ff) << 13);
    if (a < 0x400) {
      const float x = float(a) * 0x1p-24f;
      return sign ? -x : x;
    }
    return float_of(sign | ((a << 13) + 0x38000000));
  }
};

template <class T, int Rank> struct Tensor {
  T* data;
  int64_t shape[Rank];
  explicit Tensor(const Argument& a) : data(static_cast<T*>(a.data)) {
    for (int d = 0; d < Rank; ++d) shape[d] = a.shape[d];
  }
  template <class... I> T& operator()(I... index) const {
    static_assert(sizeof...(I) == Rank, "one index per dimension");
    int64_t at = 0;
    int d = 0;
    ((at = at * shape[d++] + int64_t(index)), ...);
    return data[at];
  }
  T& operator[](int64_t i) const { return data[i]; }
  int64_t stride(int dim) const {
    int64_t out = 1;
    for (int d = dim + 1; d < Rank; ++d) out *= shape[d];
    return out;
  }
  int64_t size() const {
    int64_t out = 1;
    for (int d = 0; d < Rank; ++d) out *= shape[d];
    return out;
  }
};

template <class T, int Rank> struct StridedTensor {
  T* data;
  int64_t shape[Rank];
  int64_t strides[Rank];
  explicit StridedTensor(const Argument& a) : data(static_cast<T*>(a.data)) {
    for (int d = 0; d < Rank; ++d) shape[d] = a.shape[d], strides[d] = a.stride[d];
  }
  template <class... I> T& operator()(I... index) const {
    static_assert(sizeof...(I) == Rank, "one index per dimension");
    int64_t at = 0;
    int d = 0;
    ((at += int64_t(index) * strides[d++]), ...);
    return data[at];
  }
  int64_t stride(int dim) const { return strides[dim]; }
  int64_t size() const {
    int64_t out = 1;
    for (int d = 0; d < Rank; ++d) out *= shape[d];
    return out;
  }
};

}  // namespace eitri_user

using eitri_user::bf16;
using eitri_user::f16;
)";

const char* element_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i8: return "int8_t";
    case DType::u8: return "uint8_t";
    case DType::i32: return "int32_t";
    case DType::i64: return "int64_t";
    default: break;
  }
  fail(Code::internal, str("user op: no C++ type for ", dtype));
}

std::string scalar_line(const UserParameter& p, const std::string& argument) {
  switch (p.scalar) {
    case UserScalar::f32: return str("const float ", p.name, " = static_cast<float>(", argument, ".real);");
    case UserScalar::f64: return str("const double ", p.name, " = ", argument, ".real;");
    case UserScalar::i32: return str("const int32_t ", p.name, " = static_cast<int32_t>(", argument, ".integer);");
    case UserScalar::i64: return str("const int64_t ", p.name, " = ", argument, ".integer;");
    case UserScalar::none: break;
  }
  return str("const eitri_user::", p.strided ? "Strided" : "", "Tensor<", p.use == UserUse::in ? "const " : "", element_type(p.dtype), ", ",
             p.shape.size(), "> ", p.name, "(", argument, ");");
}

/// The value of a parameter in a GPU kernel, from `argument`.
std::string gpu_type(const UserParameter& p) {
  switch (p.scalar) {
    case UserScalar::f32: return "float";
    case UserScalar::f64: return "double";
    case UserScalar::i32: return "int32_t";
    case UserScalar::i64: return "int64_t";
    case UserScalar::none: break;
  }
  return str("::eitri::EITRI_SIMT::User", p.strided ? "Strided" : "", "Tensor<", p.use == UserUse::in ? "const " : "",
             element_type(p.dtype), ", ", p.shape.size(), ">");
}
std::string gpu_value(const UserParameter& p, size_t index) {
  const std::string argument = str("eitri_a.argument[", index, "]");
  if (p.is_tensor()) return argument;
  const bool real = p.scalar == UserScalar::f32 || p.scalar == UserScalar::f64;
  return str("static_cast<", gpu_type(p), ">(", argument, real ? ".real)" : ".integer)");
}

/// The #include lines of a text, and the text with empty lines in their place.
struct Split {
  std::string includes, rest;
};
Split split_includes(std::string_view text) {
  Split out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t first = line.find_first_not_of(" \t");
    const bool include = first != std::string_view::npos && line.substr(first).starts_with("#include");
    if (include) out.includes += str(line, "\n");
    out.rest += str(include ? std::string_view() : line, "\n");
  }
  return out;
}

bool has_output(const Declaration& declaration) {
  for (const UserParameter& p : declaration.parameters)
    if (p.use != UserUse::in) return true;
  return false;
}

}  // namespace

void check_gpu_source(const Declaration& d, const UserGpuSource& s) {
  if (!s.given()) {
    require(s.before.empty() && s.flags.empty() && s.headers.empty(), d.name, ": gpu has neither body nor entry; expected one of them");
    return;
  }
  require(s.body.empty() || s.entry.empty(), d.name, ": gpu has a body and an entry; expected one of them");
  require(s.threads >= 64 && s.threads <= 1024 && s.threads % 64 == 0, d.name, ": gpu.threads is ", s.threads,
          "; expected a multiple of 64 from 64 to 1024 (warps have 32 or 64 lanes)");
  require(has_output(d), d.name, ": no parameter is out or inout; expected one for a GPU kernel to write to");
  if (!s.entry.empty()) {
    require(s.before.find(s.entry) != std::string::npos, d.name, ": gpu.entry is ", s.entry,
            "; expected the name of a kernel in gpu.before");
    // Launches overlap: without it the kernel may read what the kernel before it still writes.
    require(s.before.find("wait_for_dependencies") != std::string::npos, d.name,
            ": gpu.before never calls wait_for_dependencies(); expected ", s.entry, " to call it before it touches memory");
    require(s.blocks != "elements", d.name, ": gpu.blocks is \"elements\", which is for a body; expected an expression of extents");
  }
  if (s.blocks != "elements") return;
  bool taken = false;
  for (const std::string& name : d.extents) taken |= name == "element";
  for (const UserParameter& p : d.parameters) taken |= p.name == "element";
  require(!taken, d.name, ": a parameter or extent is called element, which is the index in a body per element; expected another name");
}

std::string user_op_gpu_entry(const UserGpuSource& source) { return source.entry.empty() ? "eitri_user_op" : source.entry; }

std::string user_op_gpu_text(const Declaration& d, const UserGpuSource& s) {
  const Split before = split_includes(s.before);
  std::string out = str("#include \"device/user_op.h\"\n", before.includes, "namespace eitri::EITRI_SIMT {\n",
                        "using eitri_arguments = UserArguments<", d.parameters.size(), ">;\n");
  if (!s.entry.empty()) {
    std::string members, values;
    const auto add = [&](const std::string& type, const std::string& name, const std::string& value) {
      members += str("  const ", type, " ", name, ";\n");
      values += str(values.empty() ? "" : ", ", name, "(", value, ")");
    };
    for (size_t i = 0; i < d.extents.size(); ++i) add("int64_t", d.extents[i], str("eitri_a.extent[", i, "]"));
    for (size_t i = 0; i < d.parameters.size(); ++i) add(gpu_type(d.parameters[i]), d.parameters[i].name, gpu_value(d.parameters[i], i));
    out +=
        str("struct eitri_call {\n", members, "  EITRI_INLINE explicit eitri_call(const eitri_arguments& eitri_a) : ", values, " {}\n};\n");
  }
  if (!s.before.empty()) out += str("#line 1 \"", d.name, " before\"\n", before.rest);
  if (s.entry.empty()) {
    out += str("#line 1 \"", d.name, " declaration\"\nEITRI_KERNEL(", s.threads, ") eitri_user_op(const eitri_arguments eitri_a) {\n",
               "  launch_dependents();\n  wait_for_dependencies();\n");
    for (size_t i = 0; i < d.extents.size(); ++i)
      out += str("  [[maybe_unused]] const int64_t ", d.extents[i], " = eitri_a.extent[", i, "];\n");
    for (size_t i = 0; i < d.parameters.size(); ++i) {
      const UserParameter& p = d.parameters[i];
      out += str("  [[maybe_unused]] const ", gpu_type(p), " ", p.name, "(", gpu_value(p, i), ");\n");
    }
    if (s.blocks == "elements") {
      const std::string threads = str(s.threads);
      out += str("  const auto eitri_each = [&]([[maybe_unused]] const int64_t element) {\n#line 1 \"", d.name, "\"\n", s.body,
                 "\n  };\n  for (int64_t eitri_at = eitri::EITRI_SIMT::block() * ", threads,
                 " + eitri::EITRI_SIMT::thread(); eitri_at < eitri_a.elements; eitri_at += eitri_a.blocks * ", threads,
                 ")\n    eitri_each(eitri_at);\n");
    } else {
      out += str("#line 1 \"", d.name, "\"\n", s.body, "\n");
    }
    out += "}\n";
  }
  return out + "}  // namespace eitri::EITRI_SIMT\n";
}

const HeaderSet& user_op_headers() {
  static const HeaderSet headers = [] {
    HeaderSet out;
    out.add("eitri_user_op.h", kPrelude);
    return out;
  }();
  return headers;
}

std::string user_op_text(const Declaration& declaration, const std::string& before, const std::string& body) {
  std::string out = "#include \"eitri_user_op.h\"\n";
  if (!before.empty()) out += str("#line 1 \"", declaration.name, " before\"\n", before, "\n");
  out += str("#line 1 \"", declaration.name, " declaration\"\n",
             "extern \"C\" __attribute__((visibility(\"default\"))) void eitri_user_op(\n"
             "    [[maybe_unused]] const eitri_user::Argument* eitri_arguments, [[maybe_unused]] const int64_t* eitri_extents) {\n");
  for (size_t i = 0; i < declaration.extents.size(); ++i) {
    out += str("  [[maybe_unused]] const int64_t ", declaration.extents[i], " = eitri_extents[", i, "];\n");
  }
  for (size_t i = 0; i < declaration.parameters.size(); ++i) {
    out += str("  [[maybe_unused]] ", scalar_line(declaration.parameters[i], str("eitri_arguments[", i, "]")), "\n");
  }
  out += str("#line 1 \"", declaration.name, "\"\n", body, "\n}\n");
  return out;
}

}  // namespace eitri::jit
