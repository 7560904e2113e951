// probe: a small operator whose rows are wrong in every way that a tuner must survive, and whose right rows take a known time, for
// they wait for it. out[m] = sum over k of x[m, k] * w[k].
#pragma once

#include <span>
#include <vector>

#include "dispatch/op.h"
#include "tune/bench.h"

namespace eitri {

struct Probe {
  static constexpr const char* name = "probe";
  struct Args {
    View x, w, out;  // f32 [m, k], [k], [m]
  };
  struct Problem {
    int64_t m = 4, k = 33;
    void fields(auto&& f) const {
      f("m", m, Match::bucketed);
      f("k", k);
    }
    bool operator==(const Problem&) const = default;
  };

  static Problem check(const Args& args);
  static bool empty(const Problem& p) { return p.m == 0; }
  static void reference(const Args& args, Oracle* oracle);
  static void tensors(auto& args, auto&& f) {
    f("x", args.x);
    f("w", args.w);
    f("out", args.out);
  }
  static std::vector<Output> outputs(const Args& args) { return {{"out", args.out}}; }
  static std::vector<Tolerance> tolerance(const Problem& p) { return {{.bound_eps = static_cast<double>(p.k + 1) * 0x1p-24}}; }
  static Cost cost(const Problem& p) { return {2.0 * double(p.m * p.k), 4.0 * double(p.m * p.k), DType::f32}; }
  static Cases<Problem> cases() { return {.test = {{{.m = 4, .k = 33}, ""}}, .bench = {}}; }
  static Args make(const Problem& problem, Maker& maker);
  static std::span<const Kernel<Probe>> kernels();
};

}  // namespace eitri

template <> inline constexpr bool eitri::tune::kFirstRowsStand<eitri::Probe> = true;
