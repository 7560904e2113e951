#include "jit/extent_expression.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace eitri::jit {

namespace {

constexpr int kMaxDepth = 20;  // of values that wait for their operator

bool is_word(char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

struct ExtentExpression::Reader {
  std::string_view text;
  std::span<const std::string> extents;
  ExtentExpression& out;
  size_t at = 0;
  int depth = 0;

  template <class... Parts> [[noreturn]] void refuse(const Parts&... wanted) const {
    const std::string_view rest = text.substr(at, 20);
    fail(Code::invalid_argument,
         str(out.what_, " is \"", text.substr(0, 100), "\", with ", rest.empty() ? std::string("its end") : str("\"", rest, "\""),
             " at character ", at + 1, "; expected ", wanted...));
  }
  char peek() {
    while (at < text.size() && text[at] == ' ') ++at;
    return at < text.size() ? text[at] : '\0';
  }
  void sum() {
    product();
    for (char c = peek(); c == '+' || c == '-'; c = peek()) ++at, product(), out.steps_.push_back({c, 0});
  }
  void product() {
    term();
    for (char c = peek(); c == '*' || c == '/'; c = peek()) ++at, term(), out.steps_.push_back({c, 0});
  }
  void term() {
    if (++depth > kMaxDepth) refuse("fewer parentheses");
    const char c = peek();
    if (c == '(') {
      ++at;
      sum();
      if (peek() != ')') refuse("')'");
      ++at;
    } else if (c >= '0' && c <= '9') {
      int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
      if (error != std::errc() || number > INT32_MAX) refuse("a number below 2^31");
      at = static_cast<size_t>(end - text.data());
      out.steps_.push_back({'n', number});
    } else {
      size_t end = at;
      while (end < text.size() && is_word(text[end])) ++end;
      const auto found = std::ranges::find(extents, text.substr(at, end - at));
      if (found == extents.end()) {
        std::string known;
        for (const std::string& name : extents) known += str(", ", name);
        refuse("a number, '('", known);
      }
      at = end;
      out.steps_.push_back({'e', found - extents.begin()});
    }
    --depth;
  }
};

ExtentExpression::ExtentExpression(std::string_view text, std::span<const std::string> extents, std::string what)
    : text_(text), what_(std::move(what)) {
  require(text.size() <= 500, what_, " has ", text.size(), " characters; expected at most 500");
  Reader reader{text_, extents, *this};
  reader.sum();
  if (reader.peek() != '\0') reader.refuse("an operator or the end");
}

int64_t ExtentExpression::value(std::span<const int64_t> extents) const {
  int64_t stack[2 * kMaxDepth + 4];  // a term, a product and a sum may wait at each depth
  size_t top = 0;
  for (const Step& step : steps_) {
    if (step.kind == 'n' || step.kind == 'e') {
      stack[top++] = step.kind == 'n' ? step.value : extents[static_cast<size_t>(step.value)];
      continue;
    }
    const int64_t b = stack[--top];
    int64_t& a = stack[top - 1];
    bool overflow = false;
    if (step.kind == '+') overflow = __builtin_add_overflow(a, b, &a);
    else if (step.kind == '-') overflow = __builtin_sub_overflow(a, b, &a);
    else if (step.kind == '*') overflow = __builtin_mul_overflow(a, b, &a);
    else if (b == 0) fail(Code::invalid_argument, str(what_, " is \"", text_, "\", which divides by 0 here"));
    else a = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    constexpr int64_t kMost = int64_t{1} << 62;
    if (overflow || a > kMost || a < -kMost) fail(Code::invalid_argument, str(what_, " is \"", text_, "\", which is beyond 2^62 here"));
  }
  return stack[0];
}

}  // namespace eitri::jit
