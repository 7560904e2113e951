// The kernels of planted_kernels.h, for the warp that EITRI_SIMT_EMULATED says.
#pragma once

#include <stdexcept>

#include "device/cluster.h"
#include "device/reduce.h"
#include "simt/planted_kernels.h"

namespace eitri::EITRI_SIMT {

constexpr int kPlantedThreads = 192;  // no power of two; 6 or 3 warps

void reverse(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread()] = in[thread()];
  sync();
  out[thread()] = values[kPlantedThreads - 1 - thread()];
}
void block_total(const float* in, float* out) {
  EITRI_SHARED BlockReduce<kPlantedThreads>::Partials partials;
  BlockReduce<kPlantedThreads> reduce(partials);
  float total = 0;
  for (int i = 0; i < 5; ++i) total = reduce.sum(in[thread()]) + reduce.largest(in[thread()]) * 0;
  out[thread()] = total;
}
void count_up(const float* in, float* out) {
  EITRI_SHARED Shared<int32_t, 1> count;
  if (thread() == 0) count[0] = 0;
  sync();
  if (in[thread()] > 0) atomic_add(count, 0, 1);
  sync();
  out[thread()] = static_cast<float>(static_cast<int32_t>(count[0]));
}
void warp_reverse(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread()] = in[thread()];
  sync_warp();
  out[thread()] = values[warp() * warp_size + warp_size - 1 - lane()];
}
void missing_barrier(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread()] = in[thread()];
  out[thread()] = values[kPlantedThreads - 1 - thread()];
}
void missing_barrier_before_reuse(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread()] = in[thread()];
  sync();
  const float other = values[kPlantedThreads - 1 - thread()];
  values[thread()] = other * 2;
  sync();
  out[thread()] = values[thread()];
}
void missing_warp_barrier(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread()] = in[thread()];
  const float unrelated = shuffle_xor(in[thread()], 1);  // a warp function is no memory barrier
  out[thread()] = values[thread() ^ 1] + unrelated;
}
void write_twice(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread() / 2] = in[thread()];
  sync();
  out[thread()] = values[thread() / 2];
}
void atomic_and_read(const float* in, float* out) {
  EITRI_SHARED Shared<int32_t, 1> count;
  if (thread() == 0) count[0] = 0;
  sync();
  if (in[thread()] > 0) atomic_add(count, 0, 1);
  out[thread()] = static_cast<float>(static_cast<int32_t>(count[0]));
}
void never_written(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  if (thread() != 77) values[thread()] = in[thread()];
  sync();
  out[thread()] = values[thread()];
}
void beyond_the_end(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread() + 1] = in[thread()];
  sync();
  out[thread()] = values[thread()];
}
void before_the_begin(const float* in, float* out) {
  EITRI_SHARED Shared<float, kPlantedThreads> values;
  values[thread() - 1] = in[thread()];
  sync();
  out[thread()] = values[thread()];
}
void barrier_in_a_branch(const float* in, float* out) {
  if (thread() < 64) sync();
  out[thread()] = in[thread()];
}
void two_barriers_in_branches(const float* in, float* out) {
  if (thread() < 64) sync();
  else sync();
  out[thread()] = in[thread()];
}
void early_return(const float* in, float* out) {
  if (thread() == 70) return;
  sync();
  out[thread()] = in[thread()];
}
void shuffle_in_a_branch(const float* in, float* out) {
  float x = in[thread()];
  if (lane() < warp_size / 2) x += shuffle_xor(x, 1);
  out[thread()] = x;
}
void loops_of_different_length(const float* in, float* out) {
  float x = in[thread()];
  for (int i = 0; i < 1 + lane() / 16 % 2; ++i) x += shuffle_xor(x, 1);
  out[thread()] = x;
}
void lane_out_of_the_warp(const float* in, float* out) { out[thread()] = shuffle_idx(in[thread()], lane() + 1); }
void misaligned(const float* in, float* out) { out[thread()] = static_cast<float>(load16(in + 1).w[0]); }
void throws(const float* in, float* out) {
  out[thread()] = in[thread()];
  if (thread() == 5) throw std::runtime_error("from a lane");
}
void sum_of_32_lanes(const float* in, float* out) {
  float x = in[thread()];
  for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  out[thread()] = x;
}

void pair_total(const float* in, float* out) {
  EITRI_SHARED PairReduce<kPlantedThreads>::Partials partials;
  PairReduce<kPlantedThreads> reduce(partials);
  const int me = cluster_rank() * kPlantedThreads + thread();
  const float total = reduce.sum(in[me]);
  out[me] = total + reduce.largest(in[me] < 0 ? 0.0f : in[me]) * 0 + static_cast<float>(block());
}
void pair_reads_too_early(const float* in, float* out) {
  EITRI_SHARED ClusterMail<2, 1> mail;
  mail.open();
  mail.meet();
  if (thread() == 0) mail.send(0, cluster_rank(), in[0], in[1]);
  const float other = mail.first(0, cluster_rank() ^ 1);
  mail.receive(0);
  out[cluster_rank() * kPlantedThreads + thread()] = other;
}
void barrier_of_one_of_a_pair(const float* in, float* out) {
  sync();
  out[cluster_rank() * kPlantedThreads + thread()] = in[thread()];
}

}  // namespace eitri::EITRI_SIMT
