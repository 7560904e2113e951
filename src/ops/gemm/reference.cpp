// The oracle of gemm: plain loops in double over the same (quantised) inputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/threads.h"
#include "base/view.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/library.h"

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
Dot dot(const double* a, const double* b, int64_t k) {
  Dot d;
  for (int64_t i = 0; i < k; ++i) {
    const double product = a[i] * b[i], magnitude = std::fabs(product);
    d.sum += product;
    d.bound += magnitude;
  }
  return d;
}
/// A bf16 unit may take subnormal operands as zero.
double subnormal_products(const double* a, const double* b, int64_t k) {
  const auto subnormal = [](double x) { return x != 0 && std::fabs(x) < 0x1p-126; };
  double sum = 0;
  for (int64_t i = 0; i < k; ++i)
    if (subnormal(a[i]) || subnormal(b[i])) sum += std::fabs(a[i] * b[i]);
  return sum;
}
bool has_subnormal(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double x) { return x != 0 && std::fabs(x) < 0x1p-126; });
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
    std::vector<std::byte> unpacked;  // rows of an opaque weight
    const int64_t row_bytes = p.k * bits(p.weight()) / 8;
    if (p.b_format == WeightFormat::onednn) {
      unpacked.resize(static_cast<size_t>(p.n * row_bytes));
      library::unpack_matrix(args.b, batch, unpacked.data());
    }
    // A packed weight has its block scales beside its codes.
    const bool scaled_apart = is_block(p.b_quant) && p.b_format == WeightFormat::strided;
    const auto weights = [&](int64_t row, std::vector<double>& out) {
      for (int64_t i = 0; i < p.k; ++i) {
        double x = p.b_format == WeightFormat::onednn ? load_at(unpacked.data() + row * row_bytes, p.weight(), i)
                                                      : weight_at(args.b, batch, row, i);
        if (scaled_apart) x *= block_scale_at(args.b_scale, p.b_quant, batch, row, i);
        out[static_cast<size_t>(i)] = x;
      }
    };
    std::vector<double> rows(static_cast<size_t>(p.m) * k);
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.k; ++j) {
        const double scale = is_block(p.a_quant) ? block_scale_at(args.a_scale, p.a_quant, batch, i, j) : 1;
        rows[static_cast<size_t>(i * p.k + j)] = load(a, {i, j}) * scale;
      }
    const bool in_bf16 = p.a == DType::bf16 || p.a == DType::f8e4m3;  // where a row may take subnormal numbers for zero
    const bool subnormal_a = in_bf16 && has_subnormal(rows);
    const View none;
    const View &a_scale = is_block(p.a_quant) ? none : args.a_scale, &b_scale = is_block(p.b_quant) ? none : args.b_scale;

    parallel(outputs * p.m * p.k > 100000 ? max_threads() : 1, [&](int thread, int threads) {
      const Span mine = split(outputs, thread, threads, 16);
      std::vector<double> gate_row(k), up_row(k);
      for (int64_t column = mine.begin; column < mine.end; ++column) {
        const int64_t gate = p.gate == GateLayout::interleaved ? 2 * column : column;
        const int64_t up = p.gate == GateLayout::interleaved ? gate + 1 : gate + outputs;
        weights(gate, gate_row);
        if (gated) weights(up, up_row);
        // x and its bound for one row of a and one row of the weight.
        const auto finish = [&](int64_t i, int64_t row, const std::vector<double>& weight) {
          const double* from = rows.data() + static_cast<size_t>(i) * k;
          Dot d = dot(from, weight.data(), p.k);
          if (subnormal_a || (in_bf16 && has_subnormal(weight))) d.bound += subnormal_products(from, weight.data(), p.k) / eps;
          const double scale = element(a_scale, batch, i, 1) * element(b_scale, batch, row, 1) * element(args.b_global_scale, batch, 0, 1);
          const double bias = element(args.bias, batch, row, 0);
          return Dot{d.sum * scale + bias, d.bound * std::fabs(scale) + std::fabs(bias)};
        };
        for (int64_t i = 0; i < p.m; ++i) {
          const Dot g = finish(i, gate, gate_row);
          const Dot u = gated ? finish(i, up, up_row) : Dot{};
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
