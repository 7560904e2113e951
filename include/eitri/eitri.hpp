// The C++ face of Eitri. Every function checks its arguments and picks the best kernel for the problem and machine. Tensors on the
// CPU: it runs on the calling thread's OpenMP team. Tensors on a GPU: it is put into `stream`, and the call returns at once; after
// the first call of a problem calls may be captured into a graph. Throws eitri::Error. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "eitri/ops.hpp"
#include "eitri/types.hpp"

namespace eitri {

EITRI_EXPORT void gemm(const GemmArgs& args, Stream stream = nullptr);
EITRI_EXPORT void grouped_gemm(const GroupedGemmArgs& args, Stream stream = nullptr);
EITRI_EXPORT void quantize(const QuantizeArgs& args, Stream stream = nullptr);
EITRI_EXPORT void activation(const ActivationArgs& args, Stream stream = nullptr);
EITRI_EXPORT void rmsnorm(const RmsNormArgs& args, Stream stream = nullptr);
EITRI_EXPORT void topk_gating(const TopkGatingArgs& args, Stream stream = nullptr);
EITRI_EXPORT void moe_sort(const MoeSortArgs& args, Stream stream = nullptr);
EITRI_EXPORT void moe_combine(const MoeCombineArgs& args, Stream stream = nullptr);
EITRI_EXPORT void fused_moe(const FusedMoeArgs& args, Stream stream = nullptr);

/// Packed weight formats. `panel32` is Eitri's own: one layout for every m, every x86 kernel reads it. `onednn` is what
/// oneDNN wants for about `m_hint` rows; it is not for storage and only the library rows read it.
enum class PackFormat : uint8_t { panel32, onednn };
struct PackArgs {
  View weights = {};                   // [n, k] or [experts, n, k], f32, bf16, f16, i8; panel32 also f8e4m3, i4 and f4e2m1
  GateLayout gate = GateLayout::none;  // of a w1: gate and up rows are then packed side by side
  PackFormat format = PackFormat::panel32;
  int64_t m_hint = 1;  // onednn only
  // Block scales go into the buffer, each beside its codes; those per tensor or row, and global ones, stay arguments of the calls.
  Quant quant = Quant::none;  // per_1x16, per_1x32, per_1x128 or per_128x128: what shares a scale (GemmArgs lists what goes together)
  View scale = {};            // as b_scale of GemmArgs: [.., n, ceil(k / N)] or [.., ceil(n / 128), ceil(k / 128)]
};
/// Bytes that pack_weights writes, 64-byte header included.
EITRI_EXPORT size_t packed_bytes(const PackArgs& args);
/// Packs into `buffer` (64-byte aligned, packed_bytes() long) and returns a View of it: layout packed, logical shape kept.
EITRI_EXPORT View pack_weights(const PackArgs& args, void* buffer);
/// Wraps a packed buffer made earlier (e.g. mapped from a file). Refuses foreign, truncated or newer formats.
EITRI_EXPORT View packed_view(const void* buffer, size_t bytes);

/// A route that the caller keeps: the choice is made once, `run` only checks and launches. Tuned rows that change later are not looked at:
/// make the plan anew.
template <class Args> class EITRI_EXPORT Plan {
 public:
  explicit Plan(const Args& args);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;
  /// Same problem (shapes, dtypes, layouts) and device as at construction, other pointers; anything else is refused.
  void run(const Args& args, Stream stream = nullptr) const;
  std::string_view kernel() const;
  size_t workspace_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Every kernel of the operator, supported or why not, the chosen one and why. `problem` as "m=1,n=4096,..."; fields
/// left out take their defaults.
EITRI_EXPORT std::string explain(std::string_view op, std::string_view problem, DeviceId device = {});
EITRI_EXPORT std::string explain_json(std::string_view op, std::string_view problem, DeviceId device = {});
EITRI_EXPORT std::string_view version();

}  // namespace eitri
