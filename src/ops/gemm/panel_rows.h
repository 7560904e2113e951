// The rows of gemm that run panel kernels: how a call is split into tasks for threads, what it is expected to cost.
#pragma once

#include <span>

#include "ops/gemm/gemm.h"

namespace eitri::panel_rows {

// Knobs, in Config order. 0 leaves the choice to the rule (split) or to the kernel.
inline constexpr int kSplitValues[] = {0, 1, 2};              // 1: threads share out rows of a, 2: panels of b
inline constexpr int kBlockValues[] = {0, 64, 96, 192, 352};  // rows of a packed at a time
inline constexpr int kChunkValues[] = {0, 4, 8, 16, 20};      // k-steps of a panel that stay in L1
inline constexpr Knob kKnobs[] = {{"split", kSplitValues}, {"block_m", kBlockValues}, {"chunk_k", kChunkValues}};
enum KnobIndex : size_t { kSplit, kBlockM, kChunkK };

/// Parts of a call, each run by one thread: row_parts x panel_parts. Panels count through the batch.
struct Partition {
  int row_parts = 1, panel_parts = 1;
  int64_t rows = 0, panels = 0;  // of the largest part
  int64_t scratch = 0;           // bytes of one part
  int parts() const { return row_parts * panel_parts; }
};
Partition partition(const Gemm::Problem& problem, int split, int threads);

/// The config with every knob at 0 that this problem's kernel or split leaves alone: one of all configs that do the same work on so many
/// threads. For tuners, which try each work once.
Config plain_config(Target target, const Gemm::Problem& problem, const Config& config, const Device& device, int threads);

/// flop/s (i8: op/s) of one thread at the level of `target`, from the device's measured profile.
double rate_of_one(Target target, DType dtype, const Device& device);
/// flop/s that the level's kernels reach on one thread with `rows` rows of operands of `dtype`.
double reached_rate(Target target, DType dtype, double rows, const Device& device);
/// Flops whose time decoding `codes` weights takes in a product with `rows` rows each, all blocks of rows together.
double decoding_flops(Target target, DType weight, Quant quant, double rows, double codes, const Device& device);
/// Flops whose time `weights` plain weights of `dtype` take with `rows` rows each: few rows take as long as some more.
double plain_flops(Target target, DType dtype, double rows, double weights);
/// Time of `flops` of a gemm with m rows on one thread: compute only.
double compute_us(Target target, const Gemm::Problem& problem, const Device& device);

template <Target kTarget> Support supports(const Gemm::Problem& problem, const Device& device);
template <Target kTarget> Guess guess(const Gemm::Problem& problem, const Device& device);
template <Target kTarget> size_t workspace(const Gemm::Problem& problem, const Config& config, const Device& device);
template <Target kTarget> void launch(const GemmArgs& args, const Gemm::Problem& problem, const Config& config, Launch& launch);

}  // namespace eitri::panel_rows
