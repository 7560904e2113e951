// grouped_gemm: one gemm per expert over the rows that moe_sort has grouped. See GroupedGemmArgs in eitri/ops.hpp.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"
#include "ops/gemm/pack.h"
#include "ops/gemm/weight_codes.h"

namespace eitri {

std::span<const char* const> enum_names(Gather);

struct GroupedGemm {
  static constexpr const char* name = "grouped_gemm";
  using Args = GroupedGemmArgs;

  /// Shapes and types only: how the rows spread over the experts is data, and no route depends on it.
  struct Problem {
    int64_t tokens = 16;       // rows of the token matrix
    int64_t capacity = 144;    // sorted positions, padding included: what moe_sort may fill at most
    int64_t experts = 4;       // local ones: matrices in b
    int64_t n = 128, k = 128;  // n counts rows of b: with a gate, c has n / 2 columns
    int64_t block = 32;
    DType a = DType::bf16;  // of both operands, unless b says otherwise
    DType c = DType::bf16;
    WeightFormat b_format = WeightFormat::panel32;
    Gather gather = Gather::token;
    GateLayout gate = GateLayout::none;
    ActivationKind activation = ActivationKind::none;
    bool row_weight = false;
    bool bias = false;
    // As in gemm: scales of f8e4m3, and of a b of fewer bits than a; none: i8 x i8 has one for each row, the rest none.
    Quant a_quant = Quant::none, b_quant = Quant::none;
    DType b = DType::none;  // none: b is of a's type

    void fields(auto&& f) const {
      f("tokens", tokens, Match::bucketed);
      f("capacity", capacity, Match::bucketed);
      f("experts", experts);
      f("n", n);
      f("k", k);
      f("block", block);
      f("a", a);
      f("c", c);
      f("b_format", b_format);
      f("gather", gather);
      f("gate", gate);
      f("activation", activation);
      f("row_weight", row_weight);
      f("bias", bias);
      f("a_quant", a_quant);
      f("b_quant", b_quant);
      f("b", b);
    }
    bool operator==(const Problem&) const = default;
    /// Columns of c.
    int64_t n_out() const { return gate == GateLayout::none ? n : n / 2; }
    /// The dtype of b.
    DType weight() const { return b == DType::none ? a : b; }
    /// Kernels decode b.
    bool coded() const { return b != DType::none || a == DType::f8e4m3; }
    /// Bytes of one expert's weights, block scales included.
    double expert_bytes() const;
    /// (token, slot) pairs behind the capacity when all experts take part: max_padded - padding. For cost models.
    int64_t expected_rows() const;
    /// Experts that get at least one of these rows when the router chooses evenly.
    double expected_experts() const;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& problem);
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("a", args.a);
    f("b", args.b);
    f("c", args.c);
    f("bias", args.bias);
    f("a_scale", args.a_scale);
    f("b_scale", args.b_scale);
    f("row_weight", args.row_weight);
    f("sorted_ids", args.sorted_ids);
    f("sorted_expert_ids", args.sorted_expert_ids);
    f("num_valid", args.num_valid);
    f("b_global_scale", args.b_global_scale);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  static std::span<const Kernel<GroupedGemm>> kernels();
};

/// A stretch of sorted positions [begin, begin + rows) that belong to one expert and are no padding.
struct ExpertRun {
  int32_t expert, begin, rows;
};
/// Reads moe_sort's lists into runs, in the order of the list. Whatever the lists hold, no run leaves [0, capacity) or
/// [0, experts) and no token in one is >= tokens. `runs` has room for `capacity` entries. Returns the number of runs.
int64_t find_runs(const GroupedGemmArgs& args, ExpertRun* runs);

/// moe_sort packs a slot and a token into one id.
inline constexpr int32_t kTokenMask = 0xffffff;

}  // namespace eitri
