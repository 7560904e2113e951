// Blocks of a launch that tell each other a number and go on with the largest. Nobody depends on a block that does not run: who has
// waited for long works out what others have not said yet, so that any number of blocks may share a device with any other work.
//
// The memory of a Meeting is zero at first. Every word in `said` carries the number of the launch it belongs to, and every block
// counts launches for itself, in words that no other block of the launch touches: whatever is left of earlier launches, of any number
// of blocks, is told from what is new, and nothing is put back at the end. (Numbers have 32 bits: a word that nobody wrote for exactly 2^32
// launches would pass for new.) Launches on one Meeting follow each other.
#pragma once

#include "device/reduce.h"

namespace eitri::EITRI_SIMT {

#if defined(EITRI_SIMT_EMULATED)
/// How often a thread asks before its block does the work of others. Blocks run one after another here, so asking again is in vain.
inline constexpr int kPatience = 1;
inline void say_word(uint64_t* p, uint64_t word) { *p = word; }
inline uint64_t heard_word(const uint64_t* p) { return *p; }
#elif defined(__AMDGCN__)
inline constexpr int kPatience = 100;
EITRI_INLINE void say_word(uint64_t* p, uint64_t word) { __hip_atomic_store(p, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
EITRI_INLINE uint64_t heard_word(uint64_t* p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
#else
inline constexpr int kPatience = 100;  // of about half a microsecond
EITRI_INLINE void say_word(uint64_t* p, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
}
EITRI_INLINE uint64_t heard_word(const uint64_t* p) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
  return word;
}
#endif

struct Meeting {
  static constexpr int kMostBlocks = 1024;
  uint64_t said[kMostBlocks];      // by each block: bits of a float, and above them the launch
  uint64_t launches[kMostBlocks];  // of 32 bits; all have the same value between launches
};

/// One launch of `blocks` blocks of kThreads, at most kMostBlocks. Made after wait_for_dependencies(). One block needs no memory and asks
/// for nothing.
template <int kThreads> class MeetingRound {
 public:
  EITRI_INLINE MeetingRound(Meeting* meeting, int blocks)
      : meeting_(meeting),
        blocks_(blocks),
        me_(static_cast<int>(block())),
        launch_(blocks > 1 ? static_cast<uint32_t>(heard_word(&meeting->launches[me_])) + 1 : 0) {}

  /// The largest number of all blocks, of which this one brings `mine`: finite, not negative. work_of(b) is what block b brings, worked
  /// out by all threads of this one. Once a launch.
  template <class Work> EITRI_INLINE float largest(float mine, BlockReduce<kThreads>& reduce, Work&& work_of) {
    if (blocks_ == 1) return mine;
    if (thread() == 0) say(me_, mine);
    float x = 0.0f;
    for (int i = thread(); i < blocks_; i += kThreads) {
      float one = heard(i);
      for (int asked = 1; one == kNothing && asked < kPatience; ++asked) one = heard(i);
      x = max_number(x, one);
    }
    x = reduce.largest(x);
    if (x == kNothing) x = largest_by_work(reduce, work_of);
    for (int i = me_ + thread() * blocks_; i < Meeting::kMostBlocks; i += kThreads * blocks_) say_word(&meeting_->launches[i], launch_);
    return x;
  }

 private:
  static constexpr float kNothing = bits_float(0x7f800000u);

  EITRI_INLINE void say(int of, float x) { say_word(&meeting_->said[of], static_cast<uint64_t>(launch_) << 32 | float_bits(x)); }
  EITRI_INLINE float heard(int of) {
    const uint64_t word = heard_word(&meeting_->said[of]);
    return static_cast<uint32_t>(word >> 32) == launch_ ? bits_float(static_cast<uint32_t>(word)) : kNothing;
  }
  /// Every block begins with its neighbour, so that they share the work.
  template <class Work> EITRI_INLINE float largest_by_work(BlockReduce<kThreads>& reduce, Work&& work_of) {
    float x = 0.0f;
    int i = me_;
    EITRI_ROLL for (int n = 0; n < blocks_; ++n) {
      float one = reduce.largest(thread() == 0 ? heard(i) : 0.0f);
      if (one == kNothing) {
        one = work_of(i);
        if (thread() == 0) say(i, one);
      }
      x = max_number(x, one);
      i = i + 1 < blocks_ ? i + 1 : 0;
    }
    return x;
  }

  Meeting* const meeting_;
  const int blocks_, me_;
  const uint32_t launch_;  // the number of this one
};

}  // namespace eitri::EITRI_SIMT
