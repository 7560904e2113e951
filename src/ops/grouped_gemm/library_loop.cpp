// grouped_gemm.library.onednn: what one would write around a matrix library: for each expert gather its rows, then one
// matmul by gemm's library row. It is the peer that the panel rows are measured against, and the only row that reads
// weights in the library's layout.
#include <algorithm>
#include <cstring>

#include "base/view.h"
#include "ops/gemm/library.h"
#include "ops/grouped_gemm/panel_rows.h"

namespace eitri {

namespace {

constexpr size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

/// One expert's matmul over m rows.
Gemm::Problem matmul(const GroupedGemm::Problem& p, int64_t m) {
  return {.batch = 1,
          .m = m,
          .n = p.n,
          .k = p.k,
          .a = p.a,
          .c = p.c,
          .b_format = p.b_format,
          .bias = p.bias ? DType::f32 : DType::none,
          .activation = p.activation,
          .gate = p.gate};
}

struct Parts {
  ExpertRun* runs;
  std::byte* rows;  // gathered [capacity, k]
  float* scales;    // gathered [capacity]
  std::byte* library;
};
Parts carve(const GroupedGemm::Problem& p, std::byte* base, size_t* used) {
  const auto capacity = static_cast<size_t>(p.capacity);
  const size_t runs = align64(capacity * sizeof(ExpertRun));
  const size_t rows = p.gather == Gather::token ? align64(static_cast<size_t>(bytes_for(p.a, p.capacity * p.k))) : 0;
  const size_t scales = p.a == DType::i8 ? align64(capacity * sizeof(float)) : 0;
  if (used != nullptr) *used = runs + rows + scales;
  if (base == nullptr) return {};
  return {reinterpret_cast<ExpertRun*>(base), base + runs, reinterpret_cast<float*>(base + runs + rows), base + runs + rows + scales};
}

/// Matrix `expert` of b as a weight of rank 2.
View matrix_of(const View& b, int64_t expert) {
  if (b.layout == Layout::strided) return slice(b, expert);
  // launch_products looks for matrix 0 behind a header and reads nothing of the header: step back from this matrix.
  View view(packed_matrix(b, expert) - sizeof(PackedHeader), b.dtype, {b.shape[1], b.shape[2]});
  view.layout = Layout::packed;
  return view;
}

View vector_of(const View& v, int64_t expert) { return v.given() ? slice(v, expert) : View{}; }

/// The run's rows of a: in place, or copied together.
View rows_of(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, const ExpertRun& run, std::byte* to, int threads) {
  if (p.gather == Gather::position) return rows(args.a, run.begin, run.begin + run.rows);
  const auto bytes = static_cast<size_t>(bytes_for(p.a, p.k));
  const auto* ids = static_cast<const int32_t*>(args.sorted_ids.data) + run.begin;
  const double us = static_cast<double>(bytes) * run.rows / 8e3;  // about 8 GB/s a thread
  parallel(threads_for(us, threads), [&](int thread, int team) {
    const Span mine = split(run.rows, thread, team);
    for (int64_t i = mine.begin; i < mine.end; ++i)
      std::memcpy(to + static_cast<size_t>(i) * bytes, row(args.a, ids[i] & kTokenMask), bytes);
  });
  return {to, p.a, {run.rows, p.k}};
}

View scales_of(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, const ExpertRun& run, float* to) {
  if (!args.a_scale.given()) return {};
  if (p.gather == Gather::position) return rows(args.a_scale, run.begin, run.begin + run.rows);
  const auto* ids = static_cast<const int32_t*>(args.sorted_ids.data) + run.begin;
  const auto* from = static_cast<const float*>(args.a_scale.data);
  for (int64_t i = 0; i < run.rows; ++i) to[i] = from[ids[i] & kTokenMask];
  return {to, DType::f32, {run.rows}};
}

}  // namespace

Support library_supports(const GroupedGemm::Problem& p, const Device& device) {
  if (p.coded()) return Support::no("b is ", p.weight(), " and a is ", p.a, ", which the library is not handed");
  if (p.row_weight) return Support::no("row weights come before bias and activation, where a library matmul has no place for them");
  return library::supports(matmul(p, 1), device);
}

Guess library_guess(const GroupedGemm::Problem& p, const Device& device) {
  const double experts = std::max(1.0, p.expected_experts());
  const auto rows = static_cast<int64_t>(static_cast<double>(p.expected_rows()) / experts + 0.5);
  return {.config = {}, .us = experts * library::guess(matmul(p, std::max<int64_t>(1, rows)), device).us};
}

size_t library_workspace(const GroupedGemm::Problem& p, const Config& config, const Device& device) {
  size_t used = 0;
  carve(p, nullptr, &used);
  return used + library::workspace(matmul(p, p.capacity), config, device);
}

void library_launch(const GroupedGemmArgs& args, const GroupedGemm::Problem& p, const Config&, Launch& launch) {
  const bool packed = args.b.layout == Layout::packed;
  const int64_t packed_bytes = packed ? static_cast<const PackedHeader*>(args.b.data)->matrix_bytes : 0;
  size_t used = 0;
  const Parts parts = carve(p, launch.workspace, &used);
  const int64_t count = find_runs(args, parts.runs);
  Launch inner{launch.device, launch.threads, parts.library, launch.workspace_bytes - used};
  for (int64_t i = 0; i < count; ++i) {
    const ExpertRun& run = parts.runs[i];
    const GemmArgs gemm{.a = rows_of(args, p, run, parts.rows, launch.threads),
                        .b = matrix_of(args.b, run.expert),
                        .c = rows(args.c, run.begin, run.begin + run.rows),
                        .bias = vector_of(args.bias, run.expert),
                        .a_scale = scales_of(args, p, run, parts.scales),
                        .b_scale = vector_of(args.b_scale, run.expert),
                        .activation = args.activation,
                        .gate = args.gate};
    library::launch_products(gemm, matmul(p, run.rows), packed_bytes, inner);
  }
}

}  // namespace eitri
