// The rows of grouped_gemm's table, and the rates that cost models of grouped work share.
#pragma once

#include "ops/grouped_gemm/grouped_gemm.h"

namespace eitri {

/// Flop/s that the panel kernels of a level reach with `rows` rows an expert on all threads of the device's profile when weights are at hand.
double panel_rate(Target target, DType math, double rows, const Device& device);
/// Microseconds of a stretch of work that computes `flops` and reads `bytes`: the longer of the two, and a part of the
/// shorter one, because reading and computing overlap only partly.
double overlapped_us(double flops, double rate, double bytes, const Device& device);
/// The memory of a weight: of a packed one the whole buffer. For checks that outputs stay clear of it.
View weight_memory(const View& weights);
/// Threads that per-thread parts of a workspace are made for.
int workspace_threads(const Device& device);

// A run's panels are dealt in tasks of at most so many: a task's scratch holds sums for all its columns.
inline constexpr int64_t kMaxTaskPanels = 64;

template <Target kTarget> Support panel_supports(const GroupedGemm::Problem& problem, const Device& device);
template <Target kTarget> Guess panel_guess(const GroupedGemm::Problem& problem, const Device& device);
size_t panel_workspace(const GroupedGemm::Problem& problem, const Config& config, const Device& device);
template <Target kTarget>
void panel_launch(const GroupedGemmArgs& args, const GroupedGemm::Problem& problem, const Config& config, Launch& launch);

/// What rounding block-scaled operands to bf16 adds; see bf16_operand_error.
double grouped_operand_error(const GroupedGemm::Problem& problem);
template <Target kTarget> constexpr Kernel<GroupedGemm> panel_row(const char* name) {
  return {.name = name,
          .family = kTarget == Target::any_cpu ? Family::tile_template : Family::assembly,
          .target = kTarget,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = false},
          .supports = panel_supports<kTarget>,
          .knobs = {},
          .guess = panel_guess<kTarget>,
          .workspace = panel_workspace,
          .launch = panel_launch<kTarget>,
          .children = nullptr,
          .operand_error = kTarget == Target::x86_amx ? grouped_operand_error : nullptr};
}

Support library_supports(const GroupedGemm::Problem& problem, const Device& device);
Guess library_guess(const GroupedGemm::Problem& problem, const Device& device);
size_t library_workspace(const GroupedGemm::Problem& problem, const Config& config, const Device& device);
void library_launch(const GroupedGemmArgs& args, const GroupedGemm::Problem& problem, const Config& config, Launch& launch);
constexpr Kernel<GroupedGemm> grouped_library_row() {
  return {.name = "grouped_gemm.library.onednn",
          .family = Family::library,
          .target = Target::any_cpu,
          .numerics = {},
          .supports = library_supports,
          .knobs = {},
          .guess = library_guess,
          .workspace = library_workspace,
          .launch = library_launch,
          .children = nullptr};
}

Guess reference_guess(const GroupedGemm::Problem& problem, const Device& device);
constexpr Kernel<GroupedGemm> grouped_reference_row() {
  return {.name = "grouped_gemm.reference",
          .family = Family::reference,
          .target = Target::any_cpu,
          .numerics = {.accumulator = DType::f32, .repeatable = true, .batch_invariant = true},
          .supports = [](const GroupedGemm::Problem&, const Device&) { return Support::yes(); },
          .knobs = {},
          .guess = reference_guess,
          .workspace = nullptr,
          .launch = [](const GroupedGemmArgs& args, const GroupedGemm::Problem&, const Config&,
                       Launch&) { GroupedGemm::reference(args, nullptr); },
          .children = nullptr};
}

}  // namespace eitri
