// The oracle of gemm: plain loops in double over the same (quantised) inputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/threads.h"
#include "base/clones.h"
#include "base/view.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/weight_rows.h"

namespace eitri {

namespace {

/// A matrix of the batch; rank-2 views are a batch of one.
View matrix(const View& view, int64_t index) { return view.rank == 3 ? slice(view, index) : view; }
/// Element i of a vector that is [n] for all or [batch, n], with n == 1 for one value; `absent` when not given.
double element(const View& view, int64_t batch, int64_t i, double absent) {
  if (!view.given()) return absent;
  if (view.shape[view.rank - 1] == 1) i = 0;
  return view.rank == 2 ? load(view, {batch, i}) : load(view, {i});
}

/// Sum of products, and sum of their absolute values.
struct Dot {
  double sum = 0, bound = 0;
};
/// Rows of a that meet a row of the weight at a time, so that their sums do not wait for one another; each adds in the order of k.
constexpr size_t kLanes = 8;
struct Dots {
  double sum[kLanes] = {}, bound[kLanes] = {};
};
/// `a`: kLanes rows, element by element.
EITRI_CLONES Dots dots(const double* a, const double* b, int64_t k) {
  Dots d;
  for (int64_t i = 0; i < k; ++i)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double product = a[i * int64_t{kLanes} + static_cast<int64_t>(lane)] * b[i];
      d.sum[lane] += product;
      d.bound[lane] += std::fabs(product);
    }
  return d;
}
bool is_subnormal(double x) { return x != 0 && std::fabs(x) < 0x1p-126; }
/// A bf16 unit may take subnormal operands as zero. `a`: of one lane.
double subnormal_products(const double* a, const double* b, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i)
    if (const double x = a[i * int64_t{kLanes}]; is_subnormal(x) || is_subnormal(b[i])) sum += std::fabs(x * b[i]);
  return sum;
}

}  // namespace

void Gemm::reference(const Args& args, Oracle* oracle) {
  const Problem p = check(args);
  const bool gated = p.gate != GateLayout::none;
  const int64_t outputs = p.n_out();
  const double eps = gemm_tolerance(p.a, p.c, p.k, p.coded()).bound_eps;
  const double most_eps = eps + (p.coded() ? bf16_operand_error(p.a, p.a_quant, p.weight(), p.b_quant) : 0);
  if (oracle != nullptr) {
    oracle->assign(1, {});
    (*oracle)[0].value.resize(static_cast<size_t>(p.batch * p.m * outputs));
    (*oracle)[0].bound.resize(static_cast<size_t>(p.batch * p.m * outputs));
  }
  const auto k = static_cast<size_t>(p.k);
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const View a = matrix(args.a, batch), c = matrix(args.c, batch);
    const WeightRows weights(args.b, batch, args.b_scale, p.b_quant);
    // Rows of a in groups of kLanes; what is beyond m is zero and nobody's.
    const auto groups = (static_cast<size_t>(p.m) + kLanes - 1) / kLanes;
    std::vector<double> rows(groups * k * kLanes);
    const auto lane_of = [&](int64_t row) {
      return rows.data() + (static_cast<size_t>(row) / kLanes * k * kLanes + static_cast<size_t>(row) % kLanes);
    };
    const bool in_bf16 = p.a == DType::bf16 || p.a == DType::f8e4m3;  // where a row may take subnormal numbers for zero
    std::vector<char> subnormal_row(static_cast<size_t>(p.m));
    parallel(p.m * p.k > 100000 ? max_threads() : 1, [&](int thread, int threads) {
      const Span mine = split(p.m, thread, threads, int64_t{kLanes});
      for (int64_t i = mine.begin; i < mine.end; ++i)
        for (int64_t j = 0; j < p.k; ++j) {
          const double scale = is_block(p.a_quant) ? block_scale_at(args.a_scale, p.a_quant, batch, i, j) : 1, x = load(a, {i, j}) * scale;
          lane_of(i)[static_cast<size_t>(j) * kLanes] = x;
          if (in_bf16 && is_subnormal(x)) subnormal_row[static_cast<size_t>(i)] = 1;
        }
    });
    const View none;
    const View &a_scale = is_block(p.a_quant) ? none : args.a_scale, &b_scale = is_block(p.b_quant) ? none : args.b_scale;

    parallel(outputs * p.m * p.k > 100000 ? max_threads() : 1, [&](int thread, int threads) {
      const Span mine = split(outputs, thread, threads, 16);
      std::vector<double> gate_row(k), up_row(k);
      for (int64_t column = mine.begin; column < mine.end; ++column) {
        const int64_t gate = p.gate == GateLayout::interleaved ? 2 * column : column;
        const int64_t up = p.gate == GateLayout::interleaved ? gate + 1 : gate + outputs;
        weights.decode(gate, gate_row.data());
        if (gated) weights.decode(up, up_row.data());
        const bool subnormal_gate = in_bf16 && std::ranges::any_of(gate_row, is_subnormal);
        const bool subnormal_up = gated && in_bf16 && std::ranges::any_of(up_row, is_subnormal);
        // x and its bound for one row of a and one row of the weight.
        const auto finish = [&](int64_t i, int64_t row, const std::vector<double>& weight, bool subnormal, Dot d) {
          if (subnormal || subnormal_row[static_cast<size_t>(i)] != 0) d.bound += subnormal_products(lane_of(i), weight.data(), p.k) / eps;
          const double scale = element(a_scale, batch, i, 1) * element(b_scale, batch, row, 1) * element(args.b_global_scale, batch, 0, 1);
          const double bias = element(args.bias, batch, row, 0);
          return Dot{d.sum * scale + bias, d.bound * std::fabs(scale) + std::fabs(bias)};
        };
        Dots gates, ups;
        for (int64_t i = 0; i < p.m; ++i) {
          const auto lane = static_cast<size_t>(i) % kLanes;
          if (lane == 0) {
            gates = dots(lane_of(i), gate_row.data(), p.k);
            if (gated) ups = dots(lane_of(i), up_row.data(), p.k);
          }
          const Dot g = finish(i, gate, gate_row, subnormal_gate, {gates.sum[lane], gates.bound[lane]});
          const Dot u = gated ? finish(i, up, up_row, subnormal_up, {ups.sum[lane], ups.bound[lane]}) : Dot{};
          Activated y = activated(args.activation, gated, g.sum, g.bound, u.sum, u.bound, eps);
          // A row that rounds its operands moves the arguments further, and an activation is not a line.
          if (most_eps > eps)
            y.bound = std::max(y.bound, activated(args.activation, gated, g.sum, g.bound, u.sum, u.bound, most_eps).bound);
          store(c, {i, column}, y.value);
          if (oracle != nullptr) {
            const auto at = static_cast<size_t>((batch * p.m + i) * outputs + column);
            (*oracle)[0].value[at] = y.value;
            (*oracle)[0].bound[at] = y.bound;
          }
        }
      }
    });
  }
}

}  // namespace eitri
