// What a reference returns besides the outputs, and how any result is judged against it: element by element.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/view.h"

namespace eitri {

/// One output tensor as exact arithmetic on the same (quantised) inputs gives it, in logical row-major order.
/// `bound` is the sum of absolute products behind each value, including what rounded intermediates may contribute; empty
/// means the output must match exactly (codes, ids).
struct Expected {
  std::vector<double> value;
  std::vector<double> bound;
  std::vector<bool> any;  // elements that the contract leaves open (e.g. rows at padding); empty: none
};
/// One entry per output, in the order of Op::outputs.
using Oracle = std::vector<Expected>;

/// allowed error = absolute + relative * |value| + bound_eps * bound. Derived from dtypes, never tuned to pass.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
  double bound_eps = 0;
};

struct Verdict {
  bool ok = true;
  double max_error_ratio = 0;  // largest error / allowed error; infinity for NaN, sign or exact mismatches
  int64_t wrong = 0;           // elements over the limit
  std::string first;           // "out[3, 17] is 0.5; expected 0.75 +- 0.001"
};
/// NaN is right only where NaN is expected, infinity only where the exact value overflows the dtype.
Verdict judge(const View& got, const Expected& expected, const Tolerance& tolerance, const char* name);

}  // namespace eitri
