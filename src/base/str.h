// str(a, b, ...): joins values into a std::string. Knows numbers, strings, DType, View; other types
// need to_string().
#pragma once

#include <concepts>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "eitri/types.hpp"

namespace eitri {

/// An enum whose names are listed by ordinal in `enum_names(E)`, found by argument-dependent lookup.
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires(E e) {
  { enum_names(e) } -> std::convertible_to<std::span<const char* const>>;
};

template <NamedEnum E> std::string_view to_string(E value) {
  const auto names = enum_names(value);
  const auto i = static_cast<size_t>(value);
  return i < names.size() ? names[i] : "?";
}

std::string_view to_string(DType dtype);
std::string_view to_string(Code code);
/// "cpu", "cuda:1".
std::string to_string(DeviceId device);
/// "bf16[128, 4096]", with strides when not contiguous, "packed" when packed, "none" when not
/// given.
std::string to_string(const View& view);

namespace detail {
void append(std::string& out, std::string_view text);
void append(std::string& out, long long value);
void append(std::string& out, unsigned long long value);
void append(std::string& out, float value);
void append(std::string& out, double value);
template <class T> void append_any(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) append(out, std::string_view(value ? "true" : "false"));
  else if constexpr (std::is_same_v<T, char>) append(out, std::string_view(&value, 1));
  else if constexpr (std::is_convertible_v<const T&, std::string_view>) append(out, std::string_view(value));
  else if constexpr (std::is_same_v<T, float>) append(out, value);  // 0.1, not 0.10000000149
  else if constexpr (std::floating_point<T>) append(out, static_cast<double>(value));
  else if constexpr (std::signed_integral<T>) append(out, static_cast<long long>(value));
  else if constexpr (std::unsigned_integral<T>) append(out, static_cast<unsigned long long>(value));
  else append(out, std::string_view(to_string(value)));
}
}  // namespace detail

template <class... Parts> std::string str(const Parts&... parts) {
  std::string out;
  (detail::append_any(out, parts), ...);
  return out;
}

}  // namespace eitri
