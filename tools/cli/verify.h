// Compares the outputs of a finished call with the operator's reference, by the operator's error model.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "base/view.h"
#include "dispatch/op.h"

namespace eitri::cli {

struct Checked {
  bool ok = true;
  double max_error_ratio = 0;
  std::string first;  // of the wrong elements, if any

  void add(const char* op, const Verdict& verdict) {
    max_error_ratio = std::max(max_error_ratio, verdict.max_error_ratio);
    if (ok && !verdict.ok) first = str(op, ": ", verdict.first);
    ok = ok && verdict.ok;
  }
};

/// `args` with its outputs as the call left them. The outputs are overwritten by the reference's.
template <Operator Op> void verify_call(const typename Op::Args& args, Checked& checked) {
  std::vector<Buffer> kept;
  std::vector<Output> got = Op::outputs(args);
  for (Output& output : got) {
    const auto bytes = static_cast<size_t>(span_bytes(output.view));
    kept.emplace_back(bytes == 0 ? 1 : bytes);
    if (bytes > 0) std::memcpy(kept.back().data(), output.view.data, bytes);
    output.view.data = kept.back().data();
  }
  Oracle oracle;
  Op::reference(args, &oracle);
  const auto tolerance = Op::tolerance(Op::check(args));
  for (size_t i = 0; i < got.size(); ++i) checked.add(Op::name, judge(got[i].view, oracle[i], tolerance[i], got[i].name));
}

}  // namespace eitri::cli
