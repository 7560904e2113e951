// A number of blocks as an expression of extents: "tokens", "(n + 255) / 256", "n * k". Operators + - * / (division rounds
// down) and parentheses; read once, computed on every call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eitri::jit {

class ExtentExpression {
 public:
  /// `what` starts messages. Throws Error{invalid_argument} that shows where the text stops making sense.
  ExtentExpression(std::string_view text, std::span<const std::string> extents, std::string what);
  /// Throws Error{invalid_argument} for a division by 0 and for values beyond 2^62.
  int64_t value(std::span<const int64_t> extents) const;

 private:
  struct Reader;
  struct Step {
    char kind;      // 'n' number, 'e' extent, or an operator on the two values before
    int64_t value;  // of a number; index of an extent
  };
  std::string text_, what_;
  std::vector<Step> steps_ = {};  // operands before their operator
};

}  // namespace eitri::jit
