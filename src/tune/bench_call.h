// The tensors of a call that a worker checks or times.
#pragma once

#include <algorithm>
#include <chrono>
#include <type_traits>

#include "backend/gpu.h"
#include "dispatch/mirror.h"
#include "dispatch/op.h"

namespace eitri::tune {

/// The op's outputs for fewer rows (tokens) are the first rows of its outputs for more: row i depends on row i of the inputs and on
/// what all rows share, and make() gives row i the same numbers. Then large problems are judged on their first rows.
template <class Op> inline constexpr bool kFirstRowsStand = false;

/// Loads of experts in every other set of tensors (Zipf); between them they are balanced.
inline constexpr double kSkew = 0.5;
/// Of a ring of tensors, where a call reads little of its own.
inline constexpr double kRingBytes = 1e9;

inline double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// A call's tensors, on the host and where the device is.
template <Operator Op> class Call {
 public:
  using Args = typename Op::Args;
  Call(const typename Op::Problem& problem, const Device& device, const MakerOptions& options) : device_(device), maker_(options) {
    host_ = Op::make(problem, maker_);
    if (const auto made = Op::check(host_); !(made == problem))
      fail(Code::unsupported, str(Op::name, ": make() built ", key_of(made), " instead of ", key_of(problem)));
    args_ = host_;
    if (device.is_gpu()) {
      mirror_ = Mirror::on_device(maker_.ranges(), device);
      Op::tensors(args_, [&](const char*, View& view) { view = mirror_.copy_of(view); });
    }
  }
  Maker& maker() { return maker_; }
  const Args& host() const { return host_; }
  const Args& args() const { return args_; }
  void upload(Stream stream) const {
    if (device_.is_gpu()) mirror_.upload(stream);
  }
  void download(Stream stream) const {
    if (device_.is_gpu()) mirror_.download(stream);
  }

 private:
  const Device& device_;
  Maker maker_;
  Args host_, args_;
  Mirror mirror_;
};

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
