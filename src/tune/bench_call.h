// The tensors of a call that a worker checks or times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <type_traits>
#include <vector>

#include "backend/gpu.h"
#include "dispatch/mirror.h"
#include "dispatch/op.h"

namespace eitri::tune {

/// The op's outputs for fewer rows (tokens) are the first rows of its outputs for more: row i depends on row i of the inputs and on
/// what all rows share, and make() gives row i the same numbers. Then large problems are judged on their first rows.
template <class Op> inline constexpr bool kFirstRowsStand = false;

/// Loads of experts in every other set of tensors (Zipf); between them they are balanced.
inline constexpr double kSkew = 0.5;
inline double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// A call's tensors, on the host and where the device is. What is uploaded and brought back are the outputs; inputs go when they are made.
template <Operator Op> class Call {
 public:
  using Args = typename Op::Args;
  Call(const typename Op::Problem& problem, const Device& device, const MakerOptions& options) : device_(device), maker_(options) {
    host_ = Op::make(problem, maker_);
    if (const auto made = Op::check(host_); !(made == problem))
      fail(Code::unsupported, str(Op::name, ": make() built ", key_of(made), " instead of ", key_of(problem)));
    args_ = host_;
    if (!device.is_gpu()) return;
    std::vector<Mirror::Range> inputs, outputs;
    for (const Mirror::Range& range : maker_.ranges()) (holds_output(range) ? outputs : inputs).push_back(range);
    inputs_ = Mirror::on_device(inputs, device);
    outputs_ = Mirror::on_device(outputs, device);
    Op::tensors(args_, [&](const char*, View& view) {
      const bool is_output = std::any_of(outputs.begin(), outputs.end(), [&](const Mirror::Range& r) { return holds(r, view); });
      view = is_output ? outputs_.copy_of(view) : inputs_.copy_of(view);
    });
  }
  Maker& maker() { return maker_; }
  const Maker& maker() const { return maker_; }
  const Args& host() const { return host_; }
  const Args& args() const { return args_; }
  void upload_inputs(Stream stream) const {
    if (device_.is_gpu()) inputs_.upload(stream);
  }
  void download_inputs(Stream stream) const {
    if (device_.is_gpu()) inputs_.download(stream);
  }
  void upload_outputs(Stream stream) const {
    if (device_.is_gpu()) outputs_.upload(stream);
  }
  void download_outputs(Stream stream) const {
    if (device_.is_gpu()) outputs_.download(stream);
  }

 private:
  static bool holds(const Mirror::Range& range, const View& view) {
    return view.data >= range.data && view.data < range.data + range.bytes;
  }
  bool holds_output(const Mirror::Range& range) const {
    const auto outputs = Op::outputs(host_);
    return std::any_of(outputs.begin(), outputs.end(), [&](const Output& o) { return holds(range, o.view); });
  }

  const Device& device_;
  Maker maker_;
  Args host_, args_;
  Mirror inputs_, outputs_;
};

/// Outputs start as NaN, and inputs are finite: what is NaN was not written, or is wrong.
inline std::string first_nan(const Output& output) {
  const View& view = output.view;
  if (!is_float(view.dtype) || view.rank == 0) return {};
  const int64_t length = view.shape[view.rank - 1], rows = length == 0 ? 0 : view.size() / length;
  for (int64_t r = 0; r < rows; ++r)  // outputs without gaps
    for (int64_t c = 0; c < length; ++c)
      if (std::isnan(load_at(view.data, view.dtype, r * length + c))) return str(output.name, " row ", r, " column ", c, " is NaN");
  return {};
}

/// The problem with fewer rows (tokens), so that its reference is within the limit. Rows stay ragged: no power of two.
template <Operator Op> typename Op::Problem with_fewer_rows(typename Op::Problem problem, double most_flops) {
  const auto work = [](const typename Op::Problem& p) {
    const Cost cost = Op::cost(p);
    return std::max(cost.flops, cost.bytes);
  };
  const double factor = most_flops / std::max(1.0, work(problem));
  if (factor >= 1) return problem;
  problem.fields([&](const char*, const auto& value, Match match = Match::exact) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, int64_t>)
      if (match == Match::bucketed && value > 1) {
        auto fewer = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(value) * factor));
        if (fewer > 3) fewer -= fewer % 2 == 0 ? 1 : 0;
        const_cast<T&>(value) = fewer;  // `problem` itself is not const
      }
  });
  return problem;
}

}  // namespace eitri::tune
