// Two blocks that share a row, each on a unit of its own: reductions over the threads of both. Their warps send each other their numbers
// through the shared memory of the cluster, and wait for what is to come: one trip, where a barrier of the cluster takes two. Behind
// simt.h: cluster_rank() and ClusterMail. Machines without clusters have none of it, and kernels there no form that asks for it.
#pragma once

#include "device/reduce.h"

namespace eitri::EITRI_SIMT {

#if defined(__AMDGCN__)
EITRI_INLINE int cluster_rank() { return 0; }
#else

#if defined(EITRI_SIMT_EMULATED)
/// Which of its cluster's blocks this is.
inline int cluster_rank() { return simt_emulation::cluster_rank(); }

/// kRounds times, each of kSlots warps of two blocks sends a pair of numbers to both. Lanes of both run together here, so one array does.
template <int kSlots, int kRounds> class ClusterMail {
 public:
  void open() {}
  void meet() {}
  void send(int round, int slot, float first, float second, EITRI_SITE) {
    pairs_[{2 * (round * kSlots + slot), file, line}] = first;
    pairs_[{2 * (round * kSlots + slot) + 1, file, line}] = second;
  }
  void receive(int, EITRI_SITE) { simt_emulation::cluster_barrier({file, line}); }
  float first(int round, int slot) { return pairs_[2 * (round * kSlots + slot)]; }
  float second(int round, int slot) { return pairs_[2 * (round * kSlots + slot) + 1]; }

 private:
  Shared<float, 2 * kSlots * kRounds> pairs_;
};
#else
/// Which of its cluster's blocks this is.
EITRI_INLINE int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

/// kRounds times, each of kSlots warps of two blocks sends a pair of numbers to both. Every block has its own copy of all pairs, and a
/// barrier a round that counts the warps of its own and the bytes of the other's. A round is used once a launch.
template <int kSlots, int kRounds> struct alignas(16) ClusterMail {
  float pairs[kRounds][kSlots][2];
  uint64_t arrived[kRounds];

  static EITRI_INLINE uint32_t here(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
  /// The same place in the other block's memory.
  static EITRI_INLINE uint32_t there(const void* p) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(here(p)), "r"(cluster_rank() ^ 1));
    return address;
  }
  /// Every thread, at the start.
  EITRI_INLINE void open() {
    if (thread() == 0) {
      EITRI_UNROLL for (int r = 0; r < kRounds; ++r) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(here(&arrived[r])), "r"(kSlots / 2 + 1) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(here(&arrived[r])), "r"(kSlots / 2 * 8) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_warp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  }
  /// Every thread, once: waits for the other block's open().
  EITRI_INLINE void meet() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
  /// By one lane of each warp.
  EITRI_INLINE void send(int round, int slot, float first, float second) {
    float* const pair = pairs[round][slot];
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there(pair)), "f"(first),
                 "f"(second), "r"(there(&arrived[round]))
                 : "memory");
    pair[0] = first;
    pair[1] = second;
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(here(&arrived[round])) : "memory");
  }
  /// Returns when all pairs of the round are here.
  EITRI_INLINE void receive(int round) {
    asm volatile(
        "{\n.reg .pred there;\nwait_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [%0], 0;\n@!there bra "
        "wait_%=;\n}" ::"r"(here(&arrived[round]))
        : "memory");
  }
  EITRI_INLINE float first(int round, int slot) { return pairs[round][slot][0]; }
  EITRI_INLINE float second(int round, int slot) { return pairs[round][slot][1]; }
};
#endif

/// BlockReduce over two blocks of kThreads. At most two reductions a launch.
template <int kThreads> class PairReduce {
 public:
  static constexpr int kWarps = kThreads / warp_size, kSlots = 2 * kWarps;
  static_assert(kThreads % warp_size == 0 && kSlots <= warp_size);
  using Partials = ClusterMail<kSlots, 2>;
  explicit EITRI_INLINE PairReduce(Partials& mail) : mail_(mail) { mail_.open(); }

  EITRI_INLINE float sum(float x) {
    exchange(group_reduce<warp_size>(x, Sum{}), 0.0f);
    return summed();
  }
  /// Of numbers that are not negative; NaN if one is.
  EITRI_INLINE float largest(float x) {
    exchange(0.0f, warp_largest(x));
    return largest_received();
  }
  /// x becomes the sum of x, y the largest y.
  EITRI_INLINE void sum_and_largest(float& x, float& y) {
    exchange(group_reduce<warp_size>(x, Sum{}), warp_largest(y));
    x = summed();
    y = largest_received();
  }

 private:
  EITRI_INLINE void exchange(float x, float y) {
    if (round_ < 0) mail_.meet();
    ++round_;
    if (lane() == 0) mail_.send(round_, cluster_rank() * kWarps + warp(), x, y);
    mail_.receive(round_);
  }
  EITRI_INLINE float summed() {
    constexpr int kGroup = next_power_of_two(kSlots);
    const int from = lane() % kGroup;
    return group_reduce<kGroup>(from < kSlots ? mail_.first(round_, from) : 0.0f, Sum{});
  }
  EITRI_INLINE float largest_received() { return warp_largest(lane() < kSlots ? mail_.second(round_, lane()) : 0.0f); }
  Partials& mail_;
  int round_ = -1;  // the last one
};
#endif

/// Reductions over the threads of a row that has kBlocks blocks.
template <int kThreads, int kBlocks> struct RowReduceOf { using type = BlockReduce<kThreads>; };
#if !defined(__AMDGCN__)
template <int kThreads> struct RowReduceOf<kThreads, 2> { using type = PairReduce<kThreads>; };
#endif
template <int kThreads, int kBlocks> using RowReduce = typename RowReduceOf<kThreads, kBlocks>::type;

}  // namespace eitri::EITRI_SIMT
