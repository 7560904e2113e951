// A kernel is a row in a table. Route, explain, tests, benchmarks, tuner and docs all read this struct.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu.h"
#include "dispatch/problem.h"
#include "jit/compiler.h"

namespace eitri {

enum class Family : uint8_t { assembly, tile_template, library, triton, dsl, simt, recipe, reference };
/// `any` is for recipes: they run wherever their children do.
enum class Target : uint8_t { any, any_cpu, x86_avx2, x86_avx512, x86_amx, any_gpu, sm_90a, gfx942, gfx950 };
std::span<const char* const> enum_names(Family);
std::span<const char* const> enum_names(Target);

/// What a caller may rely on, and what the tests demand.
struct Numerics {
  DType accumulator = DType::f32;
  bool repeatable = true;        // same call, same bits
  bool batch_invariant = false;  // a row's bits do not depend on the other rows
  /// Errors of sums over what fp32 additions may make: 1, unless the machine adds in fewer bits and the header says how that is known.
  double sum_error = 1;
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
  // Values are places in a list that is made for each problem, the best guess first: at another problem only the first one means the same.
  bool is_place = false;
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

/// A kernel for a run-time compiler: an entry of an embedded file, compiled with these macros. Entries of one file with the same
/// macros come from one binary.
struct Source {
  const char* file = nullptr;  // "ops/rmsnorm/simt.cuh"; null: a place that this problem has no use for
  const char* entry = nullptr;
  std::vector<std::string> defines = {};  // "EITRI_X=bf16"
  bool on_demand = false;                 // for calls that are rare (unaligned rows): loaded when the first one comes
};
inline constexpr size_t kMaxFunctions = 8;
using Functions = std::array<const gpu::Function*, kMaxFunctions>;

/// Where a launch runs. Workspace is at least as large as the row's workspace() asked for, on the device, 64-byte aligned (256 on
/// a GPU), and dirty. `functions` are the row's sources(), loaded.
struct Launch {
  const Device& device;
  int threads = 1;
  std::byte* workspace = nullptr;
  size_t workspace_bytes = 0;
  Stream stream = nullptr;
  const gpu::Function* const* functions = nullptr;  // null where it is loaded on demand
  const gpu::Function& (*load)(const Launch&, size_t index) = nullptr;
  const void* call = nullptr;  // for load
};

/// Starts functions[index] with `argument`, a plain struct, by value. 0 blocks: nothing.
template <class Argument> void launch_kernel(const Launch& launch, size_t index, const gpu::Geometry& geometry, const Argument& argument) {
  static_assert(std::is_trivially_copyable_v<Argument> && sizeof(Argument) <= 4000);
  const gpu::Function* const known = launch.functions[index];
  gpu::launch(known != nullptr ? *known : launch.load(launch, index), geometry, launch.stream, &argument);
}

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
  /// How far the row rounds operands of the problem away from what they are, relative to each product; null: it does not.
  double (*operand_error)(const Problem&) = nullptr;
  /// What a launch needs compiled at run time, in the order of Launch::functions; null: built in.
  std::vector<Source> (*sources)(const Problem&, const Config&, const Device&) = nullptr;
};

/// Does the device run this target at all? Checked before a row's own supports().
Support target_runs_on(Target target, const Device& device);

/// The request to compile a source for a device.
jit::CompileRequest compile_request(const Source& source, std::string_view label, const Device& device);
/// A source's function on the device: from memory, disk or the compiler. `label` is the kernel's name. Throws Error: while the
/// stream captures a graph, what is not loaded already is refused.
const gpu::Function& load_source(const Source& source, std::string_view label, const Device& device, Stream stream);
/// All that are not on demand.
Functions load_sources(const std::vector<Source>& sources, std::string_view label, const Device& device, Stream stream);

}  // namespace eitri
