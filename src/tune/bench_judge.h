// What a candidate's outputs are compared with: the reference's values, or those of a candidate that is right.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/threads.h"
#include "base/numeric.h"
#include "tune/bench_call.h"

namespace eitri::tune {

/// Of each output, gaps included.
using OutputBits = std::vector<std::vector<std::byte>>;
template <Operator Op> OutputBits bits_of(const typename Op::Args& args) {
  OutputBits out;
  for (const Output& o : Op::outputs(args)) {
    const auto* first = static_cast<const std::byte*>(o.view.data);
    out.emplace_back(first, first + span_bytes(o.view));
  }
  return out;
}
/// Compared by several threads where they are many.
inline bool are_same(const void* a, const void* b, size_t bytes) {
  if (bytes == 0) return true;
  std::atomic<bool> same = true;
  parallel(bytes < size_t{4} << 20 ? 1 : max_threads(), [&](int thread, int threads) {
    const Span mine = split(static_cast<int64_t>(bytes), thread, threads, 4096);
    const auto at = [&](const void* data) { return static_cast<const char*>(data) + mine.begin; };
    if (std::memcmp(at(a), at(b), static_cast<size_t>(mine.end - mine.begin)) != 0) same.store(false, std::memory_order_relaxed);
  });
  return same;
}
template <Operator Op> bool has_bits(const typename Op::Args& args, const OutputBits& bits) {
  const auto outputs = Op::outputs(args);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (bits.size() != outputs.size() || !are_same(outputs[i].view.data, bits[i].data(), bits[i].size())) return false;
  return true;
}
inline bool has_open(const Expected& expected) { return std::find(expected.any.begin(), expected.any.end(), true) != expected.any.end(); }

/// "" or what is wrong; `error`: raised to the largest error over the allowed one.
inline std::string judged(const Output& output, const Expected& expected, const Tolerance& tolerance, double& error) {
  const Verdict verdict = judge(output.view, expected, tolerance, output.name);
  error = std::max(error, verdict.max_error_ratio);
  return verdict.ok ? std::string() : str(verdict.first, " (", verdict.wrong, " wrong elements)");
}

/// What a candidate gave that was right, as far as it was judged.
struct RightResult {
  OutputBits bits = {};                // none: nothing yet
  std::string kernel = {}, name = {};  // name: with its config
  std::vector<Tolerance> tolerance = {};
  double error = 0;
};
/// Whether the outputs are those that another config of the kernel was right with: then they are as right, and no closer look is needed.
template <Operator Op> bool is_known(const RightResult& right, const std::string& kernel, const typename Op::Args& args, double& error) {
  if (right.kernel != kernel || !has_bits<Op>(args, right.bits)) return false;
  error = std::max(error, right.error);
  return true;
}

/// The least index for which it holds, looked for by several threads; `size`: none.
template <class F> int64_t first_where(int64_t size, F&& holds) {
  std::atomic<int64_t> first = size;
  parallel(size < 1 << 16 ? 1 : max_threads(), [&](int thread, int threads) {
    const Span mine = split(size, thread, threads, 64);
    for (int64_t e = mine.begin; e < mine.end && e < first.load(std::memory_order_relaxed); ++e) {
      if (!holds(e)) continue;
      for (int64_t known = first; e < known && !first.compare_exchange_weak(known, e);) {
      }
    }
  });
  return first;
}
/// find(value_at) with a function of memory and an element's index. Most outputs are bf16; a dtype that is looked at for each of millions
/// takes longer than the candidate.
template <class F> int64_t first_by_value(DType dtype, F&& find) {
  if (dtype != DType::bf16) return find([dtype](const void* data, int64_t e) { return load_at(data, dtype, e); });
  return find([](const void* data, int64_t e) {
    uint16_t code;
    std::memcpy(&code, static_cast<const char*>(data) + 2 * e, sizeof code);
    return double{decode_bf16(code)};
  });
}

/// Outputs start as NaN, and inputs are finite: what is NaN was not written, or is wrong. Of outputs without gaps.
inline std::string first_nan(const Output& output) {
  const View& view = output.view;
  if (!is_float(view.dtype) || view.rank == 0 || view.size() == 0) return {};
  const int64_t first = first_by_value(
      view.dtype, [&](auto value_at) { return first_where(view.size(), [&](int64_t e) { return std::isnan(value_at(view.data, e)); }); });
  const int64_t length = view.shape[view.rank - 1];
  return first == view.size() ? std::string() : str(output.name, " row ", first / length, " column ", first % length, " is NaN");
}

/// The first element that is NaN, or farther from the first right candidate's than both may be from the truth. The sums behind elements that
/// nobody judged are taken to be at most 4 times the largest of the judged ones: rows of the same random data.
inline std::string first_other(const Output& output, size_t index, const Expected& rows, const Tolerance& tolerance,
                               const RightResult& right_result) {
  const View& view = output.view;
  if (!right_result.bits.empty() && are_same(view.data, right_result.bits[index].data(), right_result.bits[index].size())) return {};
  constexpr size_t kEnough = 8;  // judged elements, to know how large sums are
  if (right_result.bits.empty() || rows.bound.size() < kEnough || !is_float(view.dtype)) return first_nan(output);
  const double bound = 4 * *std::max_element(rows.bound.begin(), rows.bound.end());
  const Tolerance& other = right_result.tolerance[index];
  const double fixed = tolerance.absolute + other.absolute + (tolerance.bound_eps + other.bound_eps) * bound;
  const double relative = tolerance.relative + other.relative;
  const std::byte* const right = right_result.bits[index].data();
  const int64_t size = view.size();  // outputs without gaps
  const int64_t first = first_by_value(view.dtype, [&](auto value_at) {
    return first_where(size, [&](int64_t e) {
      const double got = value_at(view.data, e), want = value_at(right, e);
      return !(got == want || std::fabs(got - want) <= fixed + relative * std::max(std::fabs(got), std::fabs(want)));
    });
  });
  if (first == size) return {};
  const int64_t length = view.shape[view.rank - 1];
  const double got = load_at(view.data, view.dtype, first);
  return str("at the whole problem: ", output.name, " row ", first / length, " column ", first % length, " is ",
             std::isnan(got) ? "NaN" : str(got), "; ", load_at(right, view.dtype, first), " by ", right_result.name);
}

}  // namespace eitri::tune
