// Enums and plain structs that host code and per-machine kernel files share. No standard library beyond <cstdint>: a
// kernel file compiled for a newer instruction set must not instantiate inline library code.
#pragma once

#include <cstdint>

namespace eitri {

/// Element types. Packed types (f4e2m1, i4) hold two elements per byte, low nibble first.
enum class DType : uint8_t {
  none,  // "no tensor" / "no quantisation"
  f32,
  f16,
  bf16,
  f8e4m3,      // OCP, max 448, no infinity
  f8e4m3fnuz,  // AMD gfx942, max 240, no infinity, no negative zero
  f8e5m2,      // OCP, max 57344
  f8e8m0,      // a power of two as a biased exponent; 255 is NaN
  f4e2m1,      // packed, max 6
  i4,          // packed, two's complement
  i8,
  u8,
  i32,
  i64,
};

/// How the elements lie in memory.
enum class Layout : uint8_t {
  strided,  // element (i, j, ...) at data + sum(index * stride)
  packed,   // an opaque, versioned buffer made by `pack_weights`; `shape` stays the logical shape, strides are unused
};

/// Gated kinds (swiglu, situv2 always; silu, gelu when a gate layout is given) compute f(gate, up), others f(x).
/// silu: g*sigmoid(g)*u. gelu: the erf form. gelu_tanh: the tanh form. swiglu (gpt-oss): g' = min(g, limit),
/// u' = clamp(u, +-limit), g'*sigmoid(alpha*g')*(u'+1). situv2: beta*tanh(g/beta)*sigmoid(g)*linear_beta*tanh(u/linear_beta).
enum class ActivationKind : uint8_t { none, relu, silu, gelu, gelu_tanh, swiglu, situv2 };

struct ActivationParams {
  ActivationKind kind = ActivationKind::none;
  float limit = 0;            // silu: gate <= limit and |up| <= limit before the activation; swiglu: the clamp; 0 = no clamp
  float alpha = 1.702f;       // swiglu
  float beta = 4.0f;          // situv2
  float linear_beta = 25.0f;  // situv2
  bool operator==(const ActivationParams&) const = default;
};

/// Where gate and up rows lie in a weight of 2*inter rows.
enum class GateLayout : uint8_t {
  none,         // no gate: inter rows (g1u0)
  separated,    // rows [0, inter) gate, [inter, 2*inter) up
  interleaved,  // gate and up rows alternate
};

/// Granularity of quantisation scales, of activations and of weights (peer-compatible names).
enum class Quant : uint8_t {
  none,
  per_tensor,
  per_token,  // one for each row: of activations a token, of weights an output channel
  per_1x32,   // one for 32 elements of k of a row
  per_1x128,
  per_128x128,  // one for 128 rows times 128 elements of k
  per_1x16,
};

/// What a norm multiplies by: the weight, or 1 + the weight (Gemma).
enum class NormWeight : uint8_t { plain, plus_one };

}  // namespace eitri
