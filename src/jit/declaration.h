// The declaration of a user op: "scale(x: f32[n], y: out f32[n], alpha: f32)".
//
//   op        = name "(" [parameter {"," parameter}] ")"
//   parameter = name ":" ["in" | "out" | "inout"] ["strided"] type ["[" extent {"," extent} "]"]
//   extent    = number | name | number "*" name
//
// A parameter with brackets is a tensor (rank 1 to 4, contiguous unless strided) of f32, f16, bf16, i8, u8, i32 or i64; one
// without is a scalar of f32, f64, i32 or i64. The same extent name means the same number everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace eitri::jit {

inline constexpr size_t kMaxUserArguments = 16, kMaxUserExtents = 16;

struct UserExtent {
  int64_t factor = 1;
  int name = -1;  // index into Declaration::extents; -1: the factor alone
};

enum class UserScalar : uint8_t { none, f32, f64, i32, i64 };
enum class UserUse : uint8_t { in, out, inout };

struct UserParameter {
  std::string name;
  UserUse use = UserUse::in;
  bool strided = false;
  DType dtype = DType::none;             // of a tensor
  UserScalar scalar = UserScalar::none;  // of a scalar
  std::vector<UserExtent> shape = {};
  std::string type = {};  // as declared: "f32[n, 2*k]"
  bool is_tensor() const { return scalar == UserScalar::none; }
};

struct Declaration {
  std::string name;
  std::vector<UserParameter> parameters;
  std::vector<std::string> extents;  // names, in order of first appearance
};

/// Throws Error{invalid_argument} that shows where the text stops making sense and what was expected there.
Declaration parse_declaration(std::string_view text);

}  // namespace eitri::jit
