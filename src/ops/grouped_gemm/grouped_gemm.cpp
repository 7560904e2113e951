#include "ops/grouped_gemm/grouped_gemm.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/view.h"
#include "ops/activation/activation.h"
#include "ops/gemm/gemm.h"
#include "ops/grouped_gemm/panel_rows.h"
#include "ops/grouped_gemm/simt.h"
#include "ops/quantize/tensor_check.h"

namespace eitri {

namespace {

constexpr const char* kOp = GroupedGemm::name;
constexpr std::array kGatherNames = {"token", "position"};

bool is_operand(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::i8 || dtype == DType::f8e4m3;
}

WeightFormat check_weights(const GroupedGemmArgs& args, int64_t k) {
  const View& b = args.b;
  check_view(b, kOp, "b", 3);
  require(goes_with(args.a.dtype, b.dtype), kOp, ": b is ", b, "; expected ", args.a.dtype, " (dtype of a)",
          args.a.dtype == DType::i8       ? ""
          : args.a.dtype == DType::f8e4m3 ? " or f4e2m1"
                                          : ", f8e4m3, i8, i4 or f4e2m1");
  require(b.shape[2] == k, kOp, ": b is ", b, "; expected last extent ", k, " (columns of a)");
  require(b.shape[0] <= INT32_MAX, kOp, ": b is ", b, "; expected at most 2^31 - 1 experts");
  WeightFormat format = WeightFormat::strided;
  if (b.layout == Layout::strided) {
    require(has_unit_inner_stride(b), kOp, ": b is ", b, "; expected inner stride 1");
    require(b.shape[1] <= 1 || k == 0 || b.stride[1] > 0, kOp, ": b is ", b, "; expected row stride > 0");
  } else {
    const PackedHeader& header = packed_header(b, kOp, "b");
    const auto gate = static_cast<GateLayout>(header.gate);
    format = header.format == static_cast<uint8_t>(PackFormat::onednn) ? WeightFormat::onednn : WeightFormat::panel32;
    require(args.a.dtype != DType::i8 || packed_quant(b) == Quant::none, kOp, ": b is packed with ", packed_quant(b),
            " scales; expected none (a is i8)");
    require(gate == args.gate, kOp, ": b is packed with gate layout ", gate, "; expected ", args.gate, " (gate)");
  }
  require(args.gate == GateLayout::none || b.shape[1] % 2 == 0, kOp, ": b is ", b, "; expected an even number of rows (gate and up rows)");
  return format;
}

void check_lists(const GroupedGemmArgs& args, int64_t capacity) {
  require(args.block > 0 && args.block <= (1 << 20), kOp, ": block is ", args.block, "; expected 1 to 1048576");
  require(args.tokens >= 0 && args.tokens <= kTokenMask, kOp, ": tokens is ", args.tokens, "; expected 0 to ", kTokenMask,
          " (24 bits of a sorted id)");
  require(args.gather <= Gather::position, kOp, ": gather is number ", static_cast<int>(args.gather), "; expected token or position");
  require(capacity <= INT32_MAX, kOp, ": sorted_ids is ", args.sorted_ids, "; expected at most 2^31 - 1 positions");
  check_tensor(args.sorted_ids, kOp, "sorted_ids", Access::read, DType::i32, {capacity});
  check_tensor(args.sorted_expert_ids, kOp, "sorted_expert_ids", Access::read, DType::i32, {kAnyExtent});
  const int64_t blocks = (capacity + args.block - 1) / args.block;
  require(args.sorted_expert_ids.shape[0] >= blocks, kOp, ": sorted_expert_ids is ", args.sorted_expert_ids, "; expected at least ", blocks,
          " entries (blocks of sorted_ids)");
  check_tensor(args.num_valid, kOp, "num_valid", Access::read, DType::i32, {2});
}

void check_vectors(const GroupedGemmArgs& args, int64_t capacity) {
  const int64_t experts = args.b.shape[0], n = args.b.shape[1];
  if (args.bias.given()) check_tensor(args.bias, kOp, "bias", Access::read, DType::f32, {experts, n});
  if (args.row_weight.given()) check_tensor(args.row_weight, kOp, "row_weight", Access::read, DType::f32, {capacity});
}

struct Quants {
  Quant a = Quant::none, b = Quant::none;
};

/// Scales of f8e4m3 rows of a.
Quant check_a_scale(const GroupedGemmArgs& args, Quant b_quant) {
  const int64_t rows = args.a.shape[0], k = args.a.shape[1];
  const Quant asked = args.a_quant;
  require(asked <= Quant::per_1x16 && asked != Quant::per_1x16 && asked != Quant::per_128x128 && quants_go_together(asked, b_quant), kOp,
          ": a_quant is ", asked, " and b_quant is ", b_quant,
          "; expected per_tensor or per_token for both, per_1x128 with per_128x128, or per_1x32 for both (a is f8e4m3)");
  if (is_block(asked)) {
    check_block_scale(args.a_scale, kOp, "a_scale", DType::f8e4m3, asked, -1, rows, k);
    return asked;
  }
  const bool one = asked == Quant::per_tensor || (asked == Quant::none && args.a_scale.rank == 1 && args.a_scale.shape[0] == 1);
  check_tensor(args.a_scale, kOp, "a_scale", Access::read, DType::f32, {one ? 1 : rows});
  return one ? Quant::per_tensor : Quant::per_token;
}

Quants check_scales(const GroupedGemmArgs& args) {
  const int64_t experts = args.b.shape[0], n = args.b.shape[1], k = args.b.shape[2];
  const DType a = args.a.dtype, b = args.b.dtype;
  const auto none = [&](const View& scale, const char* name, DType dtype, const char* operand) {
    require(!scale.given(), kOp, ": ", name, " is ", scale, "; expected none (", operand, " is ", dtype, ")");
  };
  const Quant usual = a == DType::i8 ? Quant::per_token : Quant::none;
  const bool coded = a != b || a == DType::f8e4m3;
  if (a != DType::f8e4m3)
    require(args.a_quant == Quant::none || args.a_quant == usual, kOp, ": a_quant is ", args.a_quant, "; expected ", usual, " (a is ", a,
            ")");
  if (!coded || a == DType::i8)
    require(args.b_quant == Quant::none || args.b_quant == usual, kOp, ": b_quant is ", args.b_quant, "; expected ", usual, " (b is ", b,
            ")");
  Quants q;
  if (a == DType::i8) {
    require(args.a_scale.given(), kOp, ": a_scale is none; expected f32[", args.a.shape[0], "] (a is i8)");
    require(args.b_scale.given(), kOp, ": b_scale is none; expected f32[", experts, ", ", n, "] (b is ", b, ")");
    check_tensor(args.a_scale, kOp, "a_scale", Access::read, DType::f32, {args.a.shape[0]});
    check_tensor(args.b_scale, kOp, "b_scale", Access::read, DType::f32, {experts, n});
  } else if (coded) {
    q.b = check_weight_scale({kOp, "b", "b_scale", "b_quant"}, args.b, args.b_scale, args.b_quant, experts, n, k);
    if (a == DType::f8e4m3) q.a = check_a_scale(args, q.b);
    else none(args.a_scale, "a_scale", a, "a");
  } else {
    none(args.a_scale, "a_scale", a, "a");
    none(args.b_scale, "b_scale", b, "b");
  }
  if (q.b == Quant::per_1x16) check_tensor(args.b_global_scale, kOp, "b_global_scale", Access::read, DType::f32, {experts});
  else require(!args.b_global_scale.given(), kOp, ": b_global_scale is ", args.b_global_scale, "; expected none (b_quant is ", q.b, ")");
  return q;
}

}  // namespace

View weight_memory(const View& weights) {
  if (weights.layout == Layout::strided) return weights;
  const auto& header = *static_cast<const PackedHeader*>(weights.data);
  return {weights.data, DType::u8, {static_cast<int64_t>(sizeof header) + header.batch * header.matrix_bytes}};
}

std::span<const char* const> enum_names(Gather) { return kGatherNames; }

GroupedGemm::Problem GroupedGemm::check(const Args& args) {
  const View &a = args.a, &b = args.b;
  check_view(a, kOp, "a", 2);
  require(is_operand(a.dtype), kOp, ": a is ", a, "; expected f32, bf16, f16, i8 or f8e4m3");
  require(a.layout == Layout::strided && has_unit_inner_stride(a), kOp, ": a is ", a, "; expected rows with inner stride 1");
  const int64_t k = a.shape[1];
  require(a.dtype != DType::i8 || k <= kMaxI8K, kOp, ": a is ", a, "; expected at most ", kMaxI8K,
          " columns (i8 sums stay within 32 bits)");
  require(args.gate <= GateLayout::interleaved, kOp, ": gate is number ", static_cast<int>(args.gate),
          "; expected none, separated or interleaved");
  const WeightFormat b_format = check_weights(args, k);
  check_activation(args.activation, args.gate, kOp);

  require(args.sorted_ids.rank == 1, kOp, ": sorted_ids is ", args.sorted_ids, "; expected i32 of rank 1");
  const int64_t capacity = args.sorted_ids.shape[0];
  check_lists(args, capacity);
  const int64_t n_out = args.gate == GateLayout::none ? b.shape[1] : b.shape[1] / 2;
  check_tensor(args.c, kOp, "c", Access::write, DType::none, {capacity, n_out});
  const int64_t a_rows = args.gather == Gather::token ? args.tokens : capacity;
  require(a.shape[0] >= a_rows, kOp, ": a is ", a, "; expected at least ", a_rows, " rows (",
          args.gather == Gather::token ? "tokens" : "sorted positions", ")");
  check_vectors(args, capacity);
  const Quants quants = check_scales(args);
  for (const auto& [view, name] : std::initializer_list<std::pair<const View&, const char*>>{{a, "a"},
                                                                                             {args.bias, "bias"},
                                                                                             {args.a_scale, "a_scale"},
                                                                                             {args.b_scale, "b_scale"},
                                                                                             {args.b_global_scale, "b_global_scale"},
                                                                                             {args.row_weight, "row_weight"},
                                                                                             {args.sorted_ids, "sorted_ids"},
                                                                                             {args.sorted_expert_ids, "sorted_expert_ids"},
                                                                                             {args.num_valid, "num_valid"}})
    check_apart(args.c, "c", view, name, kOp);
  check_apart(args.c, "c", weight_memory(b), "b", kOp);

  return {.tokens = args.tokens,
          .capacity = capacity,
          .experts = b.shape[0],
          .n = b.shape[1],
          .k = k,
          .block = args.block,
          .a = a.dtype,
          .c = args.c.dtype,
          .b_format = b_format,
          .gather = args.gather,
          .gate = args.gate,
          .activation = args.activation.kind,
          .row_weight = args.row_weight.given(),
          .bias = args.bias.given(),
          .a_quant = quants.a,
          .b_quant = quants.b,
          .b = b.dtype == a.dtype ? DType::none : b.dtype};
}

bool GroupedGemm::empty(const Problem& p) { return p.tokens == 0 || p.capacity == 0 || p.experts == 0 || p.n == 0 || p.k == 0; }

std::vector<Output> GroupedGemm::outputs(const Args& args) { return {{"c", args.c}}; }

std::vector<Tolerance> GroupedGemm::tolerance(const Problem& p) { return {gemm_tolerance(p.a, p.c, p.k, p.coded())}; }

int64_t GroupedGemm::Problem::expected_rows() const {
  // max_padded is tokens * top_k + experts * block - top_k. With few tokens the caller may have cut the lists to
  // tokens * top_k * block, the most that so few pairs can fill.
  const int64_t padding = experts * block;
  if (capacity > padding) return std::max(capacity - padding, tokens);
  return std::max<int64_t>(1, std::max(capacity / std::max<int64_t>(1, block), tokens));
}

double GroupedGemm::Problem::expected_experts() const {
  const auto e = static_cast<double>(std::max<int64_t>(1, experts));
  return e * (1 - std::pow(1 - 1 / e, static_cast<double>(expected_rows())));
}

double GroupedGemm::Problem::expert_bytes() const {
  const double codes = static_cast<double>(n) * static_cast<double>(k) * bits(weight()) / 8.0;
  return coded() ? codes + block_scale_bytes(weight(), b_quant, n, k) : codes;
}

Cost GroupedGemm::cost(const Problem& p) {
  const auto rows = static_cast<double>(p.expected_rows());
  const auto n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  return {
      .flops = 2 * rows * n * k,
      .bytes = p.expected_experts() * p.expert_bytes() + rows * k * bits(p.a) / 8.0 + rows * static_cast<double>(p.n_out()) * bits(p.c) / 8,
      .math = p.a};
}

std::span<const Kernel<GroupedGemm>> GroupedGemm::kernels() {
  static const std::array kKernels = {
#if EITRI_X86
    panel_row<Target::x86_amx>("grouped_gemm.x86_amx.panel"),
    panel_row<Target::x86_avx512>("grouped_gemm.x86_avx512.panel"),
    panel_row<Target::x86_avx2>("grouped_gemm.x86_avx2.panel"),
#endif
    grouped_gemm_simt_tile(),
    panel_row<Target::any_cpu>("grouped_gemm.portable.panel"),
    grouped_library_row(),
    grouped_reference_row(),
  };
  return kKernels;
}

}  // namespace eitri
