// GPUs read plain rows of weights; the packed formats, which are the defaults of problems, are for CPUs.
#pragma once

#include <string_view>
#include <type_traits>

#include "dispatch/problem.h"
#include "ops/gemm/pack.h"

namespace eitri {

/// The problem with plain weights. Fields that `text` ("b_format=panel32,...") names stay as they are, and those of shared experts where
/// there are none: calls without them have the default there.
template <class P> P with_plain_weights(P problem, std::string_view text = {}) {
  bool shares = true;
  if constexpr (requires { problem.shared_inter; }) shares = problem.shared_inter > 0;
  problem.fields([&](const char* name, const auto& value, Match = Match::exact) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, WeightFormat>) {
      bool named = !shares && std::string_view(name).starts_with("shared_");
      for (const auto& pair : detail::split_pairs(text, ',')) named = named || pair.first == name;
      if (!named) const_cast<T&>(value) = WeightFormat::strided;  // `problem` itself is not const
    }
  });
  return problem;
}

}  // namespace eitri
