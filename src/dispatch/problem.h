// A Problem is a plain aggregate that lists its fields once: `void fields(auto&& f) const { f("m", m); ... }`.
// Hash, text key, CSV columns, test names and parsing are derived from that list.
#pragma once

#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/str.h"

namespace eitri {

/// How a tuned row may match a problem in this field.
enum class Match : uint8_t { exact, bucketed };

namespace detail {
inline uint64_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
template <class T> uint64_t bits_of(const T& value) { return static_cast<uint64_t>(value); }

bool parse_bool(std::string_view text, bool& out);
/// Comma-separated "name=value" pairs, in order; throws on a pair without '='.
std::vector<std::pair<std::string_view, std::string_view>> split_pairs(std::string_view text, char separator);
[[noreturn]] void bad_value(std::string_view field, std::string_view got, std::string_view wanted);
[[noreturn]] void unknown_field(std::string_view op, std::string_view got, const std::vector<std::string>& known);

template <class T> void parse_value(std::string_view field, std::string_view text, T& out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!parse_bool(text, out)) bad_value(field, text, "0 or 1");
  } else if constexpr (std::is_same_v<T, DType>) {
    const auto dtype = text == "none" ? DType::none : dtype_from(text).value_or(DType::none);
    if (dtype == DType::none && text != "none") bad_value(field, text, "a dtype such as f32, bf16, i8");
    out = dtype;
  } else if constexpr (NamedEnum<T>) {
    std::string known;
    const auto names = enum_names(T{});
    for (size_t i = 0; i < names.size(); ++i) {
      if (text == names[i]) {
        out = static_cast<T>(i);
        return;
      }
      known += str(i == 0 ? "" : ", ", names[i]);
    }
    bad_value(field, text, known);
  } else {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) bad_value(field, text, "a number");
    out = value;
  }
}
}  // namespace detail

/// One multiplication an extent (about 5 cycles) and one for all fields of a byte, mixed once at the end: this stands on every call's path.
template <class P> uint64_t hash_of(const P& problem) {
  constexpr uint64_t kFactor = 0xd6e8feb86659fd93ull;
  uint64_t h = 0x9e3779b97f4a7c15ull, small = 0;
  problem.fields([&]<class T>(const char*, const T& value, Match = Match::exact) {
    if constexpr (sizeof(T) == 1) small = (small << 8 | small >> 56) ^ detail::bits_of(value);
    else h = ((h << 7 | h >> 57) ^ detail::bits_of(value)) * kFactor;
  });
  return mix(((h << 7 | h >> 57) ^ small) * kFactor);
}

/// "m=1,n=4096,k=4096,a=bf16": every field, in order. Pasting it into explain, a test filter or a CSV gives it back.
template <class P> std::string key_of(const P& problem) {
  std::string key;
  problem.fields([&](const char* name, const auto& value, Match = Match::exact) {
    if (!key.empty()) key += ',';
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, bool>) key += str(name, "=", value ? 1 : 0);
    else key += str(name, "=", value);
  });
  return key;
}

template <class P> std::vector<std::string> field_names(const P& problem = {}) {
  std::vector<std::string> names;
  problem.fields([&](const char* name, const auto&, Match = Match::exact) { names.emplace_back(name); });
  return names;
}

/// Inverse of key_of; fields that the text leaves out keep P's defaults. Throws on unknown names and bad values.
template <class P> P parse_problem(std::string_view op, std::string_view text) {
  P problem;
  for (const auto& pair : detail::split_pairs(text, ',')) {
    const std::string_view name = pair.first, value = pair.second;  // clang captures no structured bindings
    bool found = false;
    problem.fields([&](const char* field, const auto& slot, Match = Match::exact) {
      if (name != field) return;
      using T = std::decay_t<decltype(slot)>;
      detail::parse_value(field, value, const_cast<T&>(slot));  // `problem` itself is not const
      found = true;
    });
    if (!found) detail::unknown_field(op, name, field_names<P>());
  }
  return problem;
}

}  // namespace eitri
