#include "tune/ops.h"

#include "backend/cpu/threads.h"
#include "ops/gemm/panel_rows.h"
#include "ops/ops.h"
#include "tune/bench.h"

namespace eitri::tune {

template <> inline constexpr bool kFirstRowsStand<Gemm> = true;

template <>
Config plain_config<Gemm>(const Kernel<Gemm>& kernel, const Gemm::Problem& problem, const Config& config, const Device& device) {
  if (device.is_gpu() || kernel.knobs.data() != panel_rows::kKnobs) return config;
  return panel_rows::plain_config(kernel.target, problem, config, device, max_threads());
}

std::span<const TunedOp> all_tuned_ops() {
  static const std::vector<TunedOp> ops = [] {
    all_ops();  // announces the problem fields
    std::vector<TunedOp> out;
    for_each_op([&]<Operator Op>() { out.push_back(tuned_op<Op>()); });
    return out;
  }();
  return ops;
}

}  // namespace eitri::tune
