// Small kernels, right ones and ones with a planted fault, compiled for warps of 32 and of 64: they prove that the emulator finds
// what it claims to find and nothing else. Every kernel gets one value per thread in and gives one out.
#pragma once

namespace eitri::simt32 {
void reverse(const float* in, float* out);       // right
void block_total(const float* in, float* out);   // right: the sum of all, twice
void count_up(const float* in, float* out);      // right: atomics; how many values are positive
void warp_reverse(const float* in, float* out);  // right: through shared memory and sync_warp
void missing_barrier(const float* in, float* out);
void missing_barrier_before_reuse(const float* in, float* out);
void missing_warp_barrier(const float* in, float* out);
void write_twice(const float* in, float* out);
void atomic_and_read(const float* in, float* out);
void never_written(const float* in, float* out);
void beyond_the_end(const float* in, float* out);
void before_the_begin(const float* in, float* out);
void barrier_in_a_branch(const float* in, float* out);
void two_barriers_in_branches(const float* in, float* out);
void early_return(const float* in, float* out);
void shuffle_in_a_branch(const float* in, float* out);
void loops_of_different_length(const float* in, float* out);
void lane_out_of_the_warp(const float* in, float* out);
void misaligned(const float* in, float* out);
void throws(const float* in, float* out);
void sum_of_32_lanes(const float* in, float* out);  // no fault, and right with warps of 32 only
// For clusters of two blocks.
void pair_total(const float* in, float* out);  // right: the sum of both blocks, twice
void pair_reads_too_early(const float* in, float* out);
void barrier_of_one_of_a_pair(const float* in, float* out);
}  // namespace eitri::simt32

namespace eitri::simt64 {
void reverse(const float* in, float* out);
void block_total(const float* in, float* out);
void count_up(const float* in, float* out);
void warp_reverse(const float* in, float* out);
void missing_barrier(const float* in, float* out);
void missing_barrier_before_reuse(const float* in, float* out);
void missing_warp_barrier(const float* in, float* out);
void write_twice(const float* in, float* out);
void atomic_and_read(const float* in, float* out);
void never_written(const float* in, float* out);
void beyond_the_end(const float* in, float* out);
void before_the_begin(const float* in, float* out);
void barrier_in_a_branch(const float* in, float* out);
void two_barriers_in_branches(const float* in, float* out);
void early_return(const float* in, float* out);
void shuffle_in_a_branch(const float* in, float* out);
void loops_of_different_length(const float* in, float* out);
void lane_out_of_the_warp(const float* in, float* out);
void misaligned(const float* in, float* out);
void throws(const float* in, float* out);
void sum_of_32_lanes(const float* in, float* out);
void pair_total(const float* in, float* out);
void pair_reads_too_early(const float* in, float* out);
void barrier_of_one_of_a_pair(const float* in, float* out);
}  // namespace eitri::simt64
