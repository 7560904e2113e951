// EITRI_CHECK: a call is compared with the reference. Tensors of a GPU are compared on host copies. op.h includes it at its end.
#pragma once

#include "dispatch/mirror.h"
#include "dispatch/op.h"

namespace eitri::detail {

template <Operator Op> class Verifier {
 public:
  using Args = typename Op::Args;
  /// Before the call: outputs may be inputs as well, and the reference must see those as they were.
  Verifier(const Args& args, const Device& device, Stream stream) : args_(args), device_(device), stream_(stream) {
    if (!device.is_gpu()) {
      before_ = Mirror::of_host(output_views());
      return;
    }
    std::vector<View> views;
    Op::tensors(args, [&](const char*, const View& view) { views.push_back(view); });
    before_ = Mirror::of_device(views, device, stream);
  }
  /// Throws Error{internal} naming kernel and element.
  void compare(const typename Op::Problem& problem, const Kernel<Op>& kernel) {
    Oracle oracle;
    const Mirror results = device_.is_gpu() ? Mirror::of_device(output_views(), device_, stream_) : Mirror::of_host(output_views());
    if (device_.is_gpu()) {
      Args on_host = args_;
      Op::tensors(on_host, [&](const char*, View& view) { view = before_.copy_of(view); });
      Op::reference(on_host, &oracle);
    } else {
      before_.restore();
      Op::reference(args_, &oracle);
      results.restore();
    }
    const auto outputs = Op::outputs(args_);
    const auto tolerance = tolerance_of(kernel, problem);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Verdict v = judge(results.copy_of(outputs[i].view), oracle[i], tolerance[i], outputs[i].name);
      if (!v.ok) fail(Code::internal, str(Op::name, ": ", kernel.name, " differs from the reference at ", key_of(problem), ": ", v.first));
    }
  }

 private:
  std::vector<View> output_views() const {
    std::vector<View> views;
    for (const Output& output : Op::outputs(args_)) views.push_back(output.view);
    return views;
  }
  const Args& args_;
  const Device& device_;
  const Stream stream_;
  Mirror before_;  // on a GPU of all tensors, else of the outputs
};

}  // namespace eitri::detail
