// The op in double: plain loops over experts and their rows, each weight row decoded once.
#include <algorithm>
#include <cmath>

#include "base/view.h"
#include "ops/activation/activation.h"
#include "ops/gemm/gemm.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/grouped_gemm/panel_rows.h"
#include "ops/gemm/weight_rows.h"

namespace eitri {

namespace {

/// One sorted position that is computed.
struct Position {
  int64_t position, a_row;
};

struct Sum {
  double value, bound;
};

/// The positions of each expert, as the lists say.
std::vector<std::vector<Position>> positions_by_expert(const GroupedGemmArgs& args) {
  const int64_t experts = args.b.shape[0], capacity = args.sorted_ids.shape[0];
  std::vector<std::vector<Position>> out(static_cast<size_t>(experts));
  const auto* ids = static_cast<const int32_t*>(args.sorted_ids.data);
  const auto* expert_of = static_cast<const int32_t*>(args.sorted_expert_ids.data);
  const int64_t used = std::min<int64_t>(capacity, capacity == 0 ? 0 : *static_cast<const int32_t*>(args.num_valid.data));
  for (int64_t p = 0; p < used; ++p) {
    const int64_t token = ids[p] & kTokenMask, expert = expert_of[p / args.block];
    if (token >= args.tokens || expert < 0 || expert >= experts) continue;
    out[static_cast<size_t>(expert)].push_back({p, args.gather == Gather::token ? token : p});
  }
  return out;
}

class ExpertReference {
 public:
  ExpertReference(const GroupedGemmArgs& args, int64_t expert, Expected* expected)
      : args_(args),
        expert_(expert),
        expected_(expected),
        p_(GroupedGemm::check(args)),
        rows_(args.b, expert, args.b_scale, p_.b_quant),
        n_(args.b.shape[1]),
        k_(args.b.shape[2]),
        tolerance_(gemm_tolerance(p_.a, p_.c, k_, p_.coded())),
        weight_(static_cast<size_t>(k_)) {}

  void run(const std::vector<Position>& positions) {
    const bool gated = args_.gate != GateLayout::none;
    const int64_t outputs = gated ? n_ / 2 : n_;
    std::vector<Sum> gate(positions.size()), up(positions.size());
    for (int64_t j = 0; j < outputs; ++j) {
      const bool separated = args_.gate != GateLayout::interleaved;
      sums(!gated || separated ? j : 2 * j, positions, gate);
      if (gated) sums(separated ? outputs + j : 2 * j + 1, positions, up);
      for (size_t i = 0; i < positions.size(); ++i) store_result(positions[i].position, j, gated, gate[i], up[i]);
    }
  }

 private:
  /// Row n of the weight against every position, scaled, with bias: what the activation is given.
  void sums(int64_t n, const std::vector<Position>& positions, std::vector<Sum>& out) {
    rows_.decode(n, weight_.data());
    double b_scale = args_.b_global_scale.given() ? load(args_.b_global_scale, {expert_}) : 1;
    if (args_.b_scale.given() && !is_block(p_.b_quant)) b_scale *= load(args_.b_scale, {expert_, p_.b_quant == Quant::per_tensor ? 0 : n});
    const double bias = args_.bias.given() ? load(args_.bias, {expert_, n}) : 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      const void* a = row(args_.a, positions[i].a_row);
      double value = 0, bound = 0;
      for (int64_t k = 0; k < k_; ++k) {
        double x = load_at(a, args_.a.dtype, k);
        if (is_block(p_.a_quant)) x *= block_scale_at(args_.a_scale, p_.a_quant, 0, positions[i].a_row, k);
        const double product = x * weight_[static_cast<size_t>(k)];
        value += product;
        bound += std::fabs(product);
      }
      double scale = b_scale;
      if (args_.a_scale.given() && !is_block(p_.a_quant))
        scale *= load(args_.a_scale, {p_.a_quant == Quant::per_tensor ? 0 : positions[i].a_row});
      if (args_.row_weight.given()) scale *= load(args_.row_weight, {positions[i].position});
      out[i] = {value * scale + bias, bound * std::fabs(scale) + std::fabs(bias)};
    }
  }

  /// The bound of a result, in units of the tolerance's bound_eps: how far the activation carries the errors of its
  /// arguments, and its own rounding.
  void store_result(int64_t position, int64_t j, bool gated, const Sum& gate, const Sum& up) {
    double value = gate.value, bound = gate.bound;
    if (args_.activation.kind != ActivationKind::none) {
      const ExactActivation exact = activate_exact(args_.activation, gated, gate.value, up.value);
      const double eps = tolerance_.bound_eps;
      const double rounded = p_.coded() ? bf16_operand_error(p_.a, p_.a_quant, p_.weight(), p_.b_quant) : 0;
      value = exact.value;
      bound = 0;
      // For rows that take the operands as they are, and for those that round them.
      for (const double e : {eps, eps + rounded}) {
        const double spread = activation_spread(args_.activation, gated, gate.value, up.value, e * gate.bound, gated ? e * up.bound : 0);
        bound = std::max(bound, (spread + exact.error_eps * epsilon(DType::f32)) / e);
      }
    }
    store(args_.c, {position, j}, value);
    if (expected_ == nullptr) return;
    const auto at = static_cast<size_t>(position * args_.c.shape[1] + j);
    expected_->value[at] = value;
    expected_->bound[at] = bound;
    expected_->any[at] = false;
  }

  const GroupedGemmArgs& args_;
  const int64_t expert_;
  Expected* expected_;
  const GroupedGemm::Problem p_;
  WeightRows rows_;
  const int64_t n_, k_;
  const Tolerance tolerance_;
  std::vector<double> weight_;
};

}  // namespace

void GroupedGemm::reference(const Args& args, Oracle* oracle) {
  Expected expected;
  if (oracle != nullptr) {
    const auto size = static_cast<size_t>(args.c.size());
    expected = {.value = std::vector<double>(size), .bound = std::vector<double>(size), .any = std::vector<bool>(size, true)};
  }
  const auto positions = positions_by_expert(args);
  for (size_t e = 0; e < positions.size(); ++e)
    if (!positions[e].empty()) ExpertReference(args, static_cast<int64_t>(e), oracle == nullptr ? nullptr : &expected).run(positions[e]);
  if (oracle != nullptr) *oracle = {std::move(expected)};
}

Guess reference_guess(const GroupedGemm::Problem& problem, const Device&) {
  constexpr double kFlops = 2e8;  // a double at a time, decoded: only ever chosen when alone
  return {.config = {}, .us = GroupedGemm::cost(problem).flops / kFlops * 1e6 + 100};
}

}  // namespace eitri
