#include "tune/ops.h"

#include "ops/ops.h"
#include "tune/bench.h"

namespace eitri::tune {

template <> inline constexpr bool kFirstRowsStand<Gemm> = true;

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
