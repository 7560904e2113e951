#include "harness/fake_op.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "dispatch/explain.h"

namespace eitri {

namespace {

using Problem = ScaleAdd::Problem;
using Args = ScaleAdd::Args;

float* row_of(const View& view, int64_t r) { return static_cast<float*>(view.data) + r * view.stride[0]; }
float* vector_of(const View& view) { return static_cast<float*>(view.data); }

std::atomic<int> calls_of_drift = 0;

void right(const Args& a) {
  for (int64_t r = 0; r < a.x.shape[0]; ++r) {
    float amax = 0;
    for (int64_t c = 0; c < a.x.shape[1]; ++c) {
      const float x = row_of(a.x, r)[c];
      row_of(a.out, r)[c] = x * vector_of(a.weight)[c] + vector_of(a.bias)[c];
      if (std::fabs(x) > amax) amax = std::fabs(x);
    }
    vector_of(a.scale)[r] = amax / 127.0f;
  }
}

/// The allowed error of element (r, c), and its exact value.
std::pair<double, double> allowed_at(const Args& a, int64_t r, int64_t c) {
  const double product = double(row_of(a.x, r)[c]) * vector_of(a.weight)[c], bias = vector_of(a.bias)[c];
  return {2 * 0x1p-24 * (std::fabs(product) + std::fabs(bias)), product + bias};
}

enum class Fault {
  none,
  nan,                // one NaN
  infinity,           // one infinity
  unwritten_tail,     // the last row's end keeps what was there
  unwritten_element,  // one element in the middle
  wrong_element,      // 1.5 times the allowed error
  within_tolerance,   // no fault: 0.9 times the allowed error must pass
  sign,               // one element negated
  off_by_one_row,     // every row is the next one's
  swapped_rows,
  stale_workspace,    // adds what the workspace holds
  dirty_accumulator,  // accumulates in a workspace that it takes for zeros
  write_before,
  write_after,
  write_gap,
  write_input,
  drift,               // alternates between two results that are both within tolerance
  depends_on_batch,    // rounds otherwise when it sees one row only
  reads_pad_to_nan,    // adds 0 * the element after the row
  reads_pad_silently,  // one ulp, still allowed, when the element after the row is zero
  nan_swallowed,       // writes 0 where NaN is right
  scale_off_by_ulp,
  throws,
  throws_error,
};

template <Fault kFault> void faulty(const Args& a, const Problem&, const Config&, Launch& launch) {
  using enum Fault;
  const int64_t rows = a.x.shape[0], cols = a.x.shape[1];
  float* const out = vector_of(a.out);
  float* const last = row_of(a.out, rows - 1) + cols - 1;
  const float kept_tail = *last, kept_middle = row_of(a.out, rows / 2)[cols / 2];
  if constexpr (kFault == throws) throw std::runtime_error("a fault");
  if constexpr (kFault == throws_error) fail(Code::internal, "a fault");
  right(a);
  auto* const workspace = reinterpret_cast<float*>(launch.workspace);
  if constexpr (kFault == nan) row_of(a.out, rows / 2)[0] = std::numeric_limits<float>::quiet_NaN();
  if constexpr (kFault == infinity) row_of(a.out, rows / 2)[0] = std::numeric_limits<float>::infinity();
  if constexpr (kFault == unwritten_tail) *last = kept_tail;
  if constexpr (kFault == unwritten_element) row_of(a.out, rows / 2)[cols / 2] = kept_middle;
  if constexpr (kFault == wrong_element || kFault == within_tolerance) {
    const auto [allowed, value] = allowed_at(a, rows - 1, cols - 1);
    const double error = allowed * (kFault == wrong_element ? 1.5 : 0.5);
    *last = static_cast<float>(value + std::copysign(error, value));
  }
  if constexpr (kFault == sign) *last = -*last;
  if constexpr (kFault == off_by_one_row) {
    for (int64_t r = 0; r + 1 < rows; ++r) std::copy_n(row_of(a.out, r + 1), cols, row_of(a.out, r));
  }
  if constexpr (kFault == swapped_rows) std::swap_ranges(row_of(a.out, 0), row_of(a.out, 0) + cols, row_of(a.out, rows - 1));
  if constexpr (kFault == stale_workspace) out[0] += 1e-30f * workspace[0];
  if constexpr (kFault == dirty_accumulator) {
    for (int64_t c = 0; c < cols; ++c) workspace[c] += row_of(a.out, 0)[c];
    std::copy_n(workspace, cols, row_of(a.out, 0));
  }
  if constexpr (kFault == write_before) out[-1] = 0;
  if constexpr (kFault == write_after) last[1] = 0;
  if constexpr (kFault == write_gap) {
    if (a.out.stride[0] > cols) row_of(a.out, 0)[cols] = 0;
  }
  if constexpr (kFault == write_input) row_of(a.x, 0)[0] = 0;
  if constexpr (kFault == drift) {
    if (calls_of_drift.fetch_add(1) % 100 == 99) out[0] = std::nextafter(out[0], 0.0f);
  }
  if constexpr (kFault == depends_on_batch) {
    if (rows == 1) {
      for (int64_t c = 0; c < cols; ++c) out[c] = std::fma(row_of(a.x, 0)[c], vector_of(a.weight)[c], vector_of(a.bias)[c]);
    }
  }
  if constexpr (kFault == reads_pad_to_nan) {
    for (int64_t r = 0; r < rows; ++r) row_of(a.out, r)[0] += 0.0f * row_of(a.x, r)[cols];
  }
  if constexpr (kFault == reads_pad_silently) {
    if (row_of(a.x, 0)[cols] == 0) out[0] = std::nextafter(out[0], 0.0f);
  }
  if constexpr (kFault == nan_swallowed) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        if (std::isnan(row_of(a.out, r)[c])) row_of(a.out, r)[c] = 0;
  }
  if constexpr (kFault == scale_off_by_ulp) vector_of(a.scale)[rows - 1] = std::nextafter(vector_of(a.scale)[rows - 1], 1e30f);
}

/// Right, by way of a workspace that it fills first.
void through_workspace(const Args& a, const Problem&, const Config&, Launch& launch) {
  auto* sums = reinterpret_cast<float*>(launch.workspace);
  Args copy = a;
  copy.out = View(sums, DType::f32, {a.x.shape[0], a.x.shape[1]});
  right(copy);
  for (int64_t r = 0; r < a.x.shape[0]; ++r) std::copy_n(row_of(copy.out, r), a.x.shape[1], row_of(a.out, r));
}

size_t workspace_bytes(const Problem& p, const Config&, const Device&) { return static_cast<size_t>(p.rows * p.cols) * 4; }
Support any(const Problem&, const Device&) { return Support::yes(); }
Support narrow(const Problem& p, const Device&) {
  return p.cols <= 64 ? Support::yes() : Support::no("cols is ", p.cols, "; this kernel takes at most 64");
}
template <int kMicroseconds> Guess takes(const Problem&, const Device&) { return {.config = {{2}}, .us = kMicroseconds}; }
Guess hopeless(const Problem& p, const Device&) { return {.us = 1e6 * double(p.rows * p.cols)}; }
void reference_row(const Args& a, const Problem&, const Config&, Launch&) { ScaleAdd::reference(a, nullptr); }
/// Asks for a kernel that no compiler makes here.
std::vector<Source> missing_sources(const Problem&, const Config&, const Device&) {
  return {{.file = "ops/scale_add/gone.cuh", .entry = "gone"}};
}
/// A recipe: computes all rows, then the first one again as a routed child.
void recipe(const Args& a, const Problem&, const Config&, Launch&) {
  right(a);
  if (a.x.shape[0] > 1) call<ScaleAdd>(ScaleAdd::rows_of(a, 0, 1));
}
void recipe_children(const Problem& p, const Config&, ChildSink& sink) {
  if (p.rows > 1) sink.add<ScaleAdd>({.rows = 1, .cols = p.cols});
}

constexpr int kUnrolls[] = {1, 2, 4};
constexpr Knob kKnobs[] = {{"unroll", kUnrolls}};
constexpr Numerics kStrict = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true};

template <Fault kFault> constexpr Kernel<ScaleAdd> fault_row(const char* name, Numerics numerics = kStrict) {
  return {.name = name,
          .family = Family::simt,
          .target = Target::any_cpu,
          .numerics = numerics,
          .supports = any,
          .guess = takes<1000000>,
          .workspace = workspace_bytes,
          .launch = faulty<kFault>};
}

constexpr Kernel<ScaleAdd> kRows[] = {
    {.name = "scale_add.x86_avx2.rows",
     .family = Family::assembly,
     .target = Target::x86_avx2,
     .numerics = kStrict,
     .supports = any,
     .guess = takes<5>,
     .launch = faulty<Fault::none>},
    {.name = "scale_add.any_gpu.rows",
     .family = Family::simt,
     .target = Target::any_gpu,
     .numerics = kStrict,
     .supports = any,
     .guess = takes<1>,
     .launch = faulty<Fault::none>},
    {.name = "scale_add.portable.rows",
     .family = Family::tile_template,
     .target = Target::any_cpu,
     .numerics = kStrict,
     .supports = any,
     .knobs = kKnobs,
     .guess = takes<10>,
     .launch = faulty<Fault::none>},
    {.name = "scale_add.portable.narrow",
     .family = Family::tile_template,
     .target = Target::any_cpu,
     .numerics = kStrict,
     .supports = narrow,
     .guess = takes<20>,
     .launch = faulty<Fault::none>},
    {.name = "scale_add.portable.workspace",
     .family = Family::tile_template,
     .target = Target::any_cpu,
     .numerics = kStrict,
     .supports = any,
     .guess = takes<30>,
     .workspace = workspace_bytes,
     .launch = through_workspace},
    {.name = "scale_add.recipe.first_row_again",
     .family = Family::recipe,
     .target = Target::any_cpu,
     .numerics = kStrict,
     .supports = any,
     .guess = takes<40>,
     .launch = recipe,
     .children = recipe_children},
    {.name = "scale_add.fault.not_loadable",
     .family = Family::simt,
     .target = Target::any_cpu,
     .numerics = kStrict,
     .supports = any,
     .guess = takes<2000000>,
     .launch = faulty<Fault::none>,
     .sources = missing_sources},
    fault_row<Fault::within_tolerance>("scale_add.right.within_tolerance", {}),
    fault_row<Fault::nan>("scale_add.fault.nan"),
    fault_row<Fault::infinity>("scale_add.fault.infinity"),
    fault_row<Fault::unwritten_tail>("scale_add.fault.unwritten_tail"),
    fault_row<Fault::unwritten_element>("scale_add.fault.unwritten_element"),
    fault_row<Fault::wrong_element>("scale_add.fault.wrong_element"),
    fault_row<Fault::sign>("scale_add.fault.sign"),
    fault_row<Fault::off_by_one_row>("scale_add.fault.off_by_one_row"),
    fault_row<Fault::swapped_rows>("scale_add.fault.swapped_rows"),
    fault_row<Fault::stale_workspace>("scale_add.fault.stale_workspace"),
    fault_row<Fault::dirty_accumulator>("scale_add.fault.dirty_accumulator"),
    fault_row<Fault::write_before>("scale_add.fault.write_before"),
    fault_row<Fault::write_after>("scale_add.fault.write_after"),
    fault_row<Fault::write_gap>("scale_add.fault.write_gap"),
    fault_row<Fault::write_input>("scale_add.fault.write_input"),
    fault_row<Fault::drift>("scale_add.fault.drift"),
    fault_row<Fault::depends_on_batch>("scale_add.fault.depends_on_batch"),
    fault_row<Fault::reads_pad_to_nan>("scale_add.fault.reads_pad_to_nan"),
    fault_row<Fault::reads_pad_silently>("scale_add.fault.reads_pad_silently"),
    fault_row<Fault::nan_swallowed>("scale_add.fault.nan_swallowed"),
    fault_row<Fault::scale_off_by_ulp>("scale_add.fault.scale_off_by_ulp"),
    fault_row<Fault::throws>("scale_add.fault.throws"),
    fault_row<Fault::throws_error>("scale_add.fault.throws_error"),
    {.name = "scale_add.reference",
     .family = Family::reference,
     .target = Target::any_cpu,
     .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
     .supports = any,
     .guess = hopeless,
     .launch = reference_row},
};

}  // namespace

std::span<const Kernel<ScaleAdd>> ScaleAdd::kernels() { return kRows; }

ScaleAdd::Problem ScaleAdd::check(const Args& a) {
  check_view(a.x, name, "x", 2);
  check_output(a.out, name, "out", 2);
  check_output(a.scale, name, "scale", 1);
  check_view(a.weight, name, "weight", 1);
  check_view(a.bias, name, "bias", 1);
  const int64_t rows = a.x.shape[0], cols = a.x.shape[1];
  require(a.out.shape[0] == rows && a.out.shape[1] == cols, name, ": out is ", a.out, "; expected f32[", rows, ", ", cols, "]");
  require(a.scale.shape[0] == rows, name, ": scale is ", a.scale, "; expected f32[", rows, "]");
  require(a.weight.shape[0] == cols, name, ": weight is ", a.weight, "; expected f32[", cols, "]");
  require(a.bias.shape[0] == cols, name, ": bias is ", a.bias, "; expected f32[", cols, "]");
  // Data in a Problem is no model for real ops; here it keeps the case apart.
  const bool nan_row = rows > 1 && cols > 0 && std::isnan(row_of(a.x, 1)[0]);
  return {.rows = rows, .cols = cols, .nan_row = nan_row};
}

void ScaleAdd::reference(const Args& a, Oracle* oracle) {
  Expected out, scale;
  for (int64_t r = 0; r < a.x.shape[0]; ++r) {
    float amax = 0;
    for (int64_t c = 0; c < a.x.shape[1]; ++c) {
      const double product = load(a.x, {r, c}) * load(a.weight, {c}), bias = load(a.bias, {c});
      store(a.out, {r, c}, product + bias);
      out.value.push_back(product + bias);
      out.bound.push_back(std::fabs(product) + std::fabs(bias));
      amax = std::fmax(amax, std::fabs(row_of(a.x, r)[c]));
    }
    vector_of(a.scale)[r] = amax / 127.0f;
    scale.value.push_back(double{amax} / 127.0);
  }
  if (oracle != nullptr) *oracle = {std::move(out), std::move(scale)};
}

Cases<ScaleAdd::Problem> ScaleAdd::cases() {
  return {.test = {{{.rows = 4, .cols = 33}, ""},
                   {{.rows = 1, .cols = 7}, ""},
                   {{.rows = 5, .cols = 128}, ""},
                   {{.rows = 3, .cols = 16, .nan_row = true}, ""},
                   {{.rows = 0, .cols = 3}, ""},
                   {{.rows = 3, .cols = 0}, ""}},
          .bench = {}};
}

ScaleAdd::Args ScaleAdd::make(const Problem& p, Maker& maker) {
  Args a;
  a.x = maker.input("x", DType::f32, {p.rows, p.cols}, Fill::normal);
  a.weight = maker.input("weight", DType::f32, {p.cols}, Fill::normal);
  a.bias = maker.input("bias", DType::f32, {p.cols}, Fill::normal);
  a.out = maker.output("out", DType::f32, {p.rows, p.cols});
  a.scale = maker.output("scale", DType::f32, {p.rows});
  if (p.nan_row) std::fill_n(row_of(a.x, 1), p.cols, std::numeric_limits<float>::quiet_NaN());
  return a;
}

ScaleAdd::Args ScaleAdd::rows_of(const Args& a, int64_t begin, int64_t end) {
  Args part = a;
  part.x = rows(a.x, begin, end);
  part.out = rows(a.out, begin, end);
  part.scale = rows(a.scale, begin, end);
  return part;
}

void reset_scale_add_faults() { calls_of_drift = 0; }

}  // namespace eitri
