#include "jit/declaration.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace eitri::jit {

namespace {

constexpr std::array kTensorTypes = {DType::f32, DType::f16, DType::bf16, DType::i8, DType::u8, DType::i32, DType::i64};
struct ScalarName {
  const char* name;
  UserScalar type;
};
constexpr ScalarName kScalarTypes[] = {
    {"f32", UserScalar::f32}, {"f64", UserScalar::f64}, {"i32", UserScalar::i32}, {"i64", UserScalar::i64}};

constexpr int64_t kMaxFactor = int64_t{1} << 40;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Declaration parse() {
    out_.name = name("the op's name");
    expect('(');
    if (!accept(')')) {
      do parameter();
      while (accept(','));
      expect(')');
    }
    skip_space();
    if (at_ != text_.size()) refuse("the end");
    return std::move(out_);
  }

 private:
  template <class... Parts> [[noreturn]] void refuse(const Parts&... wanted) const {
    const std::string_view rest = text_.substr(at_, 20);
    fail(Code::invalid_argument,
         str("user op: the declaration \"", text_.substr(0, 200), "\" has ", rest.empty() ? std::string("its end") : str("\"", rest, "\""),
             " at character ", at_ + 1, "; expected ", wanted...));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse("'", c, "'");
  }

  std::string_view word() {
    skip_space();
    size_t end = at_;
    while (end < text_.size() && (is_letter(text_[end]) || (end > at_ && is_digit(text_[end])))) ++end;
    return text_.substr(at_, end - at_);
  }
  /// Names become C++ identifiers in the generated source, where eitri_ is ours.
  std::string name(std::string_view what) {
    const std::string_view found = word();
    if (found.empty() || found.size() > 64 || found.starts_with("eitri_") || found.find("__") != std::string_view::npos ||
        found[0] == '_') {
      refuse(what, " (letters, digits and _, at most 64, not starting with _ or eitri_)");
    }
    at_ += found.size();
    return std::string(found);
  }
  bool accept_word(std::string_view wanted) {
    if (word() != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  void parameter() {
    if (out_.parameters.size() == kMaxUserArguments) refuse("at most ", kMaxUserArguments, " parameters");
    skip_space();
    const size_t start = at_;
    UserParameter p = {.name = name("a parameter's name")};
    current_ = p.name;
    for (const UserParameter& other : out_.parameters) {
      if (other.name == p.name) at_ = start, refuse("another name (", p.name, " is taken)");
    }
    if (std::find(out_.extents.begin(), out_.extents.end(), p.name) != out_.extents.end())
      at_ = start, refuse("another name (", p.name, " is an extent)");
    expect(':');
    bool said_use = true;
    if (accept_word("inout")) p.use = UserUse::inout;
    else if (accept_word("out")) p.use = UserUse::out;
    else if (!accept_word("in")) said_use = false;
    p.strided = accept_word("strided");
    skip_space();
    const size_t type_start = at_;
    const std::string_view type = word();
    at_ += type.size();
    if (accept('[')) {
      at_ = type_start + type.size();
      tensor(p, type, type_start);
    } else {
      at_ = type_start;
      const auto* found =
          std::find_if(std::begin(kScalarTypes), std::end(kScalarTypes), [&](const ScalarName& s) { return s.name == type; });
      if (found == std::end(kScalarTypes)) refuse("a scalar type (f32, f64, i32, i64) or a tensor type with its extents, such as f32[n]");
      if (said_use && p.use != UserUse::in) refuse("a tensor (a scalar cannot be written to)");
      if (p.strided) refuse("a tensor (a scalar has no strides)");
      p.scalar = found->type;
      at_ += type.size();
    }
    p.type = text_.substr(type_start, at_ - type_start);
    out_.parameters.push_back(std::move(p));
  }

  void tensor(UserParameter& p, std::string_view type, size_t type_start) {
    const auto dtype = dtype_from(type);
    if (!dtype || std::find(kTensorTypes.begin(), kTensorTypes.end(), *dtype) == kTensorTypes.end()) {
      at_ = type_start;
      std::string known;
      for (const DType t : kTensorTypes) known += str(known.empty() ? "" : ", ", t);
      refuse("an element type: ", known);
    }
    p.dtype = *dtype;
    expect('[');
    do {
      if (p.shape.size() == size_t{kMaxRank}) refuse("']' (at most ", kMaxRank, " dimensions)");
      p.shape.push_back(extent());
    } while (accept(','));
    expect(']');
  }

  UserExtent extent() {
    UserExtent out;
    skip_space();
    if (at_ < text_.size() && is_digit(text_[at_])) {
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), out.factor);
      if (error != std::errc() || out.factor > kMaxFactor) refuse("a number up to ", kMaxFactor);
      const size_t start = at_;
      at_ = static_cast<size_t>(end - text_.data());
      if (!accept('*')) return out;
      if (out.factor == 0) at_ = start, refuse("a factor above 0");
    }
    skip_space();
    const size_t start = at_;
    std::string found = name("an extent: a number, a name or number*name");
    bool taken = found == current_;
    for (const UserParameter& p : out_.parameters) taken |= p.name == found;
    if (taken) at_ = start, refuse("the name of an extent (", found, " is a parameter)");
    const auto known = std::find(out_.extents.begin(), out_.extents.end(), found);
    out.name = static_cast<int>(known - out_.extents.begin());
    if (known == out_.extents.end()) {
      if (out_.extents.size() == kMaxUserExtents) at_ = start, refuse("at most ", kMaxUserExtents, " names of extents");
      out_.extents.push_back(std::move(found));
    }
    return out;
  }

  const std::string_view text_;
  size_t at_ = 0;
  Declaration out_ = {};
  std::string current_ = {};  // the parameter that is being read
};

}  // namespace

Declaration parse_declaration(std::string_view text) {
  require(text.size() <= 10'000, "user op: the declaration has ", text.size(), " characters; expected at most 10000");
  return Parser(text).parse();
}

}  // namespace eitri::jit
