// The activation functions of enums.hpp on vectors: for the activation op and for the epilogues of matrix kernels. Kinds
// are template arguments where a loop should not branch; with_activation() turns the runtime kind into one.
//
// Formulas are those of ActivationKind. gelu_tanh uses (1 + tanh y) / 2 = sigmoid(2 y) and gelu the tail-accurate normal
// distribution, so that both keep relative accuracy for negative x. At -infinity silu and gelu are NaN (-inf * 0), as
// the formulas say. A gated kind without a gate function of its own (none, relu) multiplies f(gate) by up.
#pragma once

#include "device/vec_math.h"
#include "eitri/enums.hpp"

namespace eitri::EITRI_VEC {

/// The gate function f(x) alone; not for swiglu and situv2, which have no form without `up`.
template <ActivationKind kKind, Precision kPrecision = Precision::full> EITRI_INLINE F activate(const ActivationParams& p, F x) {
  if constexpr (kKind == ActivationKind::relu) return max(x, F::zero());
  else if constexpr (kKind == ActivationKind::silu) {
    const F g = p.limit > 0 ? min(x, F::set1(p.limit)) : x;
    return g * sigmoid<kPrecision>(g);
  } else if constexpr (kKind == ActivationKind::gelu) return x * normal_cdf(x);
  else if constexpr (kKind == ActivationKind::gelu_tanh) {
    // 2 sqrt(2/pi) (x + 0.044715 x^3)
    const F cubic = fma(x * x, F::set1(0.044715f), F::set1(1.0f));
    return x * sigmoid<kPrecision>(x * cubic * F::set1(1.5957691216057308f));
  } else {
    static_assert(kKind == ActivationKind::none);
    return x;
  }
}

/// f(gate, up).
template <ActivationKind kKind, Precision kPrecision = Precision::full> EITRI_INLINE F activate(const ActivationParams& p, F g, F u) {
  if constexpr (kKind == ActivationKind::swiglu) {
    if (p.limit > 0) {
      g = min(g, F::set1(p.limit));
      u = max(min(u, F::set1(p.limit)), F::set1(-p.limit));
    }
    return g * sigmoid<kPrecision>(F::set1(p.alpha) * g) * (u + F::set1(1.0f));
  } else if constexpr (kKind == ActivationKind::situv2) {
    const F gate = F::set1(p.beta) * tanh(g / F::set1(p.beta)) * sigmoid<kPrecision>(g);
    return gate * (F::set1(p.linear_beta) * tanh(u / F::set1(p.linear_beta)));
  } else {
    if constexpr (kKind == ActivationKind::silu) {
      if (p.limit > 0) u = max(min(u, F::set1(p.limit)), F::set1(-p.limit));
    }
    return activate<kKind, kPrecision>(p, g) * u;
  }
}

template <ActivationKind kKind> struct Kind { static constexpr ActivationKind value = kKind; };

/// Calls f(Kind<kind>{}): one branch outside the loop.
template <class Body> EITRI_INLINE void with_activation(ActivationKind kind, Body&& body) {
  switch (kind) {
    case ActivationKind::none: return body(Kind<ActivationKind::none>{});
    case ActivationKind::relu: return body(Kind<ActivationKind::relu>{});
    case ActivationKind::silu: return body(Kind<ActivationKind::silu>{});
    case ActivationKind::gelu: return body(Kind<ActivationKind::gelu>{});
    case ActivationKind::gelu_tanh: return body(Kind<ActivationKind::gelu_tanh>{});
    case ActivationKind::swiglu: return body(Kind<ActivationKind::swiglu>{});
    case ActivationKind::situv2: return body(Kind<ActivationKind::situv2>{});
  }
}

#if !defined(EITRI_SIMT)
/// The runtime forms (internal linkage: each file keeps its own): a predictable branch per call. A kind that needs `up` gives x
/// unchanged without it (refused by the operators' checks). GPU kernels are compiled for one kind.
static inline F activate(const ActivationParams& p, F x) {
  switch (p.kind) {
    case ActivationKind::relu: return activate<ActivationKind::relu>(p, x);
    case ActivationKind::silu: return activate<ActivationKind::silu>(p, x);
    case ActivationKind::gelu: return activate<ActivationKind::gelu>(p, x);
    case ActivationKind::gelu_tanh: return activate<ActivationKind::gelu_tanh>(p, x);
    default: return x;
  }
}
static inline F activate(const ActivationParams& p, F g, F u) {
  switch (p.kind) {
    case ActivationKind::none: return activate<ActivationKind::none>(p, g, u);
    case ActivationKind::relu: return activate<ActivationKind::relu>(p, g, u);
    case ActivationKind::silu: return activate<ActivationKind::silu>(p, g, u);
    case ActivationKind::gelu: return activate<ActivationKind::gelu>(p, g, u);
    case ActivationKind::gelu_tanh: return activate<ActivationKind::gelu_tanh>(p, g, u);
    case ActivationKind::swiglu: return activate<ActivationKind::swiglu>(p, g, u);
    case ActivationKind::situv2: return activate<ActivationKind::situv2>(p, g, u);
  }
  return g;
}
#endif

}  // namespace eitri::EITRI_VEC
