// quantize: rows of f32, bf16 or f16 to codes of 8 or 4 bits, with a scale for the tensor, a row or a block of a row. Rules:
// base/numeric.h. The op is exact: every row of the table gives the same bits.
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "eitri/ops.hpp"

namespace eitri {

struct Quantize {
  static constexpr const char* name = "quantize";
  using Args = QuantizeArgs;
  struct Problem {
    int64_t rows = 1, cols = 0;
    DType x = DType::bf16, q = DType::i8;
    Quant quant = Quant::per_token;
    bool sorted = false;  // sorted_ids say which rows are padding
    void fields(auto&& f) const {
      f("rows", rows, Match::bucketed);
      f("cols", cols);
      f("x", x);
      f("q", q);
      f("quant", quant);
      f("sorted", sorted);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.rows == 0 || p.cols == 0; }
  static void reference(const Args& args, Oracle* oracle);
  /// Every tensor argument by name, given or not.
  static void tensors(auto& args, auto&& f) {
    f("x", args.x);
    f("q", args.q);
    f("scale", args.scale);
    f("sorted_ids", args.sorted_ids);
    f("num_valid", args.num_valid);
  }
  static std::vector<Output> outputs(const Args& args);
  static std::vector<Tolerance> tolerance(const Problem& problem);
  static Cost cost(const Problem& problem);
  static Cases<Problem> cases();
  static Args make(const Problem& problem, Maker& maker);
  /// The call for rows [begin, end) alone, on the same memory: a row's bits do not depend on the others. With sorted_ids, for one
  /// row: none when it is padding, else without the lists. With a scale for the tensor, the tensor is one indivisible row.
  static int64_t row_count(const Args& args) { return args.quant == Quant::per_tensor ? 1 : args.x.shape[0]; }
  static Args rows_of(const Args& args, int64_t begin, int64_t end);
  static std::span<const Kernel<Quantize>> kernels();
};

/// The dtype of the scales of such codes; none: the two do not go together.
DType quantize_scale_dtype(DType q, Quant quant);
/// Columns that share a scale: 32, 128, or all of them.
constexpr int64_t quantize_block(Quant quant, int64_t cols) {
  return quant == Quant::per_1x32 ? 32 : quant == Quant::per_1x128 ? 128 : cols;
}
/// Is a row's scale one number of its own?
constexpr bool has_block_scales(Quant quant) { return quant == Quant::per_1x32 || quant == Quant::per_1x128; }

/// Checks the optional list of moe_sort positions that quantize and activation share; true when it is given.
bool check_sorted(const View& sorted_ids, const View& num_valid, int64_t tokens, int64_t rows, const char* op);
/// Is row `position` real, given checked lists? Always, without them.
bool is_real_row(const View& sorted_ids, const View& num_valid, int64_t tokens, int64_t position);
/// Lists for tests: `rows` positions, runs of real ones between padding, the last quarter beyond num_valid.
void make_sorted(int64_t rows, Maker& maker, View& sorted_ids, View& num_valid, int64_t& tokens);

}  // namespace eitri
