// A list of kernel forms made at compile time, and the kernel of each.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

namespace eitri {

template <class Form, size_t kMost> struct FormList {
  std::array<Form, kMost> forms = {};
  size_t count = 0;
  constexpr void add(const Form& form) {
    for (size_t i = 0; i < count; ++i)
      if (forms[i] == form) return;
    forms[count++] = form;
  }
};

/// kMake.template operator()<form>() is the kernel of a form. Null when the list has no such form.
template <const auto& kList, class Lane, class Make> Lane find_lane(const auto& form, Make make) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    Lane found = nullptr;
    ((kList.forms[kIndex] == form ? (void)(found = make.template operator()<kList.forms[kIndex]>()) : (void)0), ...);
    return found;
  }
  (std::make_index_sequence<kList.count>());
}

}  // namespace eitri
