// A kernel is a row in a table. Route, explain, tests, benchmarks, tuner and docs all read this struct.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "dispatch/problem.h"

namespace eitri {

enum class Family : uint8_t { assembly, tile_template, library, triton, dsl, simt, recipe, reference };
enum class Target : uint8_t { any_cpu, x86_avx2, x86_avx512, x86_amx, any_gpu, sm_90a, gfx942, gfx950 };
std::span<const char* const> enum_names(Family);
std::span<const char* const> enum_names(Target);

/// What a caller may rely on, and what the tests demand.
struct Numerics {
  DType accumulator = DType::f32;
  bool repeatable = true;        // same call, same bits
  bool batch_invariant = false;  // a row's bits do not depend on the other rows
};

/// Yes, or a sentence saying why not.
struct Support {
  bool ok = true;
  std::string reason;
  static Support yes() { return {}; }
  template <class... Parts> static Support no(const Parts&... parts) { return {false, str(parts...)}; }
  explicit operator bool() const { return ok; }
};

/// A tuning parameter: a name and the values worth trying.
struct Knob {
  const char* name;
  std::span<const int> values;
};
using Knobs = std::span<const Knob>;
inline constexpr size_t kMaxKnobs = 8;

/// One value per knob, in knob order.
struct Config {
  std::array<int, kMaxKnobs> value = {};
  int operator[](size_t i) const { return value[i]; }
  bool operator==(const Config&) const = default;
};
/// "tile_m=32;split_k=1"; empty without knobs.
std::string to_string(const Config& config, Knobs knobs);
/// Inverse; nullopt-like: returns false and fills `why` on an unknown or missing knob and on a value that it does not list.
bool parse_config(std::string_view text, Knobs knobs, Config& config, std::string& why);

/// A cost model's answer: the config it would run and the time it expects.
struct Guess {
  Config config = {};
  double us = 0;
};

/// Work of a problem: what its floor is computed from.
struct Cost {
  double flops = 0;         // multiply and add counted separately; integer operations for i8
  double bytes = 0;         // every operand once, caches ignored
  DType math = DType::f32;  // which peak rate applies
};

struct Source {  // for run-time compilers; built-in kernels leave it empty
  const char* file = nullptr;
  const char* entry = nullptr;
};

/// Where a launch runs. Workspace is at least as large as the row's workspace() asked for, 64-byte aligned, and dirty.
struct Launch {
  const Device& device;
  int threads = 1;
  std::byte* workspace = nullptr;
  size_t workspace_bytes = 0;
};

class ChildSink;  // collects the child problems of a recipe, see explain.h

template <class Op> struct Kernel {
  using Problem = typename Op::Problem;
  const char* name;  // "<op>.<machine or family>.<method>", stable
  Family family;
  Target target;
  Numerics numerics = {};
  Support (*supports)(const Problem&, const Device&);
  Knobs knobs = {};
  Guess (*guess)(const Problem&, const Device&);
  size_t (*workspace)(const Problem&, const Config&, const Device&) = nullptr;  // null: none
  void (*launch)(const typename Op::Args&, const Problem&, const Config&, Launch&);
  void (*children)(const Problem&, const Config&, ChildSink&) = nullptr;  // recipes only
  Source source = {};
};

/// Does the device run this target at all? Checked before a row's own supports().
Support target_runs_on(Target target, const Device& device);

}  // namespace eitri
