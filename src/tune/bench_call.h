// The tensors of a call that a worker checks or times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
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

/// Tensors from here on go to a GPU and come back without a buffer in between: to tell the driver takes as long as to copy a little.
inline constexpr size_t kPinnedBytes = size_t{1} << 20;

/// A call's tensors, on the host and where the device is. Inputs go there when they are made; outputs are brought back after each call.
template <Operator Op> class Call {
 public:
  using Args = typename Op::Args;
  /// `lenders`: calls whose weights are these as well, where they were made alike. They outlive this one.
  Call(const typename Op::Problem& problem, const Device& device, const MakerOptions& options, const std::vector<Call*>& lenders = {})
      : device_(device), maker_(options) {
    for (const Call* lender : lenders) maker_.borrow_from(lender->maker());
    host_ = Op::make(problem, maker_);
    if (const auto made = Op::check(host_); !(made == problem))
      fail(Code::unsupported, str(Op::name, ": make() built ", key_of(made), " instead of ", key_of(problem)));
    args_ = host_;
    if (!device.is_gpu()) return;
    std::vector<Mirror::Range> inputs, outputs;
    for (const Mirror::Range& range : maker_.own_ranges()) (holds_output(range) ? outputs : inputs).push_back(range);
    inputs_ = Mirror::on_device(inputs, device);
    outputs_ = Mirror::on_device(outputs, device);
    mirrors_ = {&outputs_, &inputs_};
    for (const Call* lender : lenders) mirrors_.insert(mirrors_.end(), lender->mirrors_.begin(), lender->mirrors_.end());
    Op::tensors(args_, [&](const char*, View& view) {
      const auto* const data = static_cast<const std::byte*>(view.data);
      const auto has = std::ranges::find_if(mirrors_, [&](const Mirror* m) { return data != nullptr && m->copy_of(data) != nullptr; });
      view = (has == mirrors_.end() ? inputs_ : **has).copy_of(view);
    });
    poisoned_ = Mirror::on_device(outputs, device);
    for (const Mirror::Range& range : maker_.own_ranges())
      if (range.bytes >= kPinnedBytes) pinned_.push_back(std::make_unique<gpu::PinnedScope>(device, range.data, range.bytes));
  }
  Call(const Call&) = delete;  // others hold its mirrors
  Call& operator=(const Call&) = delete;
  Maker& maker() { return maker_; }
  const Maker& maker() const { return maker_; }
  const Args& host() const { return host_; }
  const Args& args() const { return args_; }
  /// To a GPU: inputs, and poisoned outputs.
  void upload(Stream stream) {
    if (!device_.is_gpu()) return;
    maker_.poison_outputs();  // a reference may have written to them
    inputs_.upload(stream);
    poisoned_.upload(stream);
    outputs_.copy_from(poisoned_, stream);
  }
  void download_inputs(Stream stream) const {
    if (device_.is_gpu()) inputs_.download(stream);
  }
  /// Outputs without a result, and with whole canaries on a GPU.
  void poison_outputs(Stream stream) {
    if (device_.is_gpu()) outputs_.copy_from(poisoned_, stream);
    else maker_.poison_outputs();
  }
  void download_outputs(Stream stream) const {
    if (device_.is_gpu()) outputs_.download(stream);
  }
  /// Where the device has what the host has at `data`; null where that is not of this call's tensors.
  const std::byte* on_device(const std::byte* data) const {
    for (const Mirror* mirror : mirrors_)
      if (const std::byte* const copy = mirror->copy_of(data); copy != nullptr) return copy;
    return nullptr;
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
  Mirror inputs_, outputs_, poisoned_;  // of a GPU
  std::vector<const Mirror*> mirrors_;  // its own and its lenders'
  std::vector<std::unique_ptr<gpu::PinnedScope>> pinned_;
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
