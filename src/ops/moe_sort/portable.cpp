// Kernels moe_sort.portable.counting and .counting_threads.
//
//   1 count   pairs of each expert (each part of the tokens has its own counts)
//   2 lay out experts in order: a run's first position, its blocks, its padding; counts become next free positions
//   3 place   pairs in (token, slot) order at the next free position of (part, expert)
//
// Bound by the random stores of step 3 (12 bytes a pair) and, for few tokens, by the fill of the whole padded length.
#include "ops/moe_sort/portable.h"

#include <cwchar>

#include "backend/cpu/threads.h"

namespace eitri::portable {

namespace {

constexpr int32_t kMasked = -1;  // instead of a next free position

void fill(int32_t* begin, int64_t n, int32_t value) {
  static_assert(sizeof(wchar_t) == sizeof(int32_t));
  // The C library picks the widest stores of the machine.
  if (n > 0) std::wmemset(reinterpret_cast<wchar_t*>(begin), static_cast<wchar_t>(value), static_cast<size_t>(n));
}

void pad(const SortTask& task, int64_t begin, int64_t end) {
  fill(task.sorted_ids + begin, end - begin, static_cast<int32_t>(task.top_k << 24 | task.tokens));
  fill(reinterpret_cast<int32_t*>(task.sorted_weights + begin), end - begin, 0);
}

void count(const SortTask& task, Span tokens, int32_t* counts) {
  for (int64_t e = 0; e < task.experts; ++e) counts[e] = 0;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int32_t* ids = task.ids + t * task.ids_stride;
    for (int64_t s = 0; s < task.top_k; ++s)
      if (static_cast<uint64_t>(ids[s]) < static_cast<uint64_t>(task.experts)) ++counts[ids[s]];
  }
}

/// `next`: counts of `parts` parts, one after the other; becomes each part's first free position in the expert's run.
void lay_out(const SortTask& task, int parts, int32_t* next) {
  int64_t position = 0, block = 0;
  int32_t local = 0;
  for (int64_t e = 0; e < task.experts; ++e) {
    if (task.mask != nullptr && task.mask[e] == 0) {
      for (int p = 0; p < parts; ++p) next[p * task.experts + e] = kMasked;
      continue;
    }
    const int64_t begin = position;
    for (int p = 0; p < parts; ++p) {
      const int32_t n = next[p * task.experts + e];
      next[p * task.experts + e] = static_cast<int32_t>(position);
      position += n;
    }
    if (position > begin) {
      const int64_t blocks = (position - begin + task.block - 1) / task.block;
      const int64_t end = begin + blocks * task.block;
      fill(task.sorted_expert_ids + block, blocks, local);
      pad(task, position, end);
      position = end;
      block += blocks;
    }
    ++local;
  }
  pad(task, position, task.padded);
  fill(task.sorted_expert_ids + block, task.blocks - block, -1);
  task.num_valid[0] = static_cast<int32_t>(position);
  task.num_valid[1] = static_cast<int32_t>(task.considered);
}

void place(const SortTask& task, Span tokens, int32_t* next) {
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int32_t* ids = task.ids + t * task.ids_stride;
    const float* weights = task.weights + t * task.weights_stride;
    int32_t* reverse = task.reverse == nullptr ? nullptr : task.reverse + t * task.reverse_stride;
    for (int64_t s = 0; s < task.top_k; ++s) {
      const bool known = static_cast<uint64_t>(ids[s]) < static_cast<uint64_t>(task.experts);
      if (!known || next[ids[s]] == kMasked) {
        if (reverse != nullptr) reverse[s] = -1;
        continue;
      }
      const int32_t position = next[ids[s]]++;
      task.sorted_ids[position] = static_cast<int32_t>(s << 24 | t);
      task.sorted_weights[position] = weights[s];
      if (reverse != nullptr) reverse[s] = position;
    }
  }
}

/// Tokens that do not count are in no run.
void forget(const SortTask& task, Span tokens) {
  if (task.reverse == nullptr) return;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) fill(task.reverse + t * task.reverse_stride, task.top_k, -1);
}

}  // namespace

size_t sort_scratch(int64_t experts, int parts) { return static_cast<size_t>(experts) * static_cast<size_t>(parts) * sizeof(int32_t); }

void sort_counting(const SortTask& task, int32_t* scratch) {
  const Span all{0, task.considered};
  count(task, all, scratch);
  lay_out(task, 1, scratch);
  place(task, all, scratch);
  forget(task, {task.considered, task.tokens});
}

void sort_counting_parallel(const SortTask& task, int32_t* scratch, int parts) {
  // A team may turn out smaller than asked for, so threads take parts in turns.
  parallel(parts, [&](int thread, int threads) {
    for (int p = thread; p < parts; p += threads) count(task, split(task.considered, p, parts), scratch + p * task.experts);
  });
  lay_out(task, parts, scratch);
  parallel(parts, [&](int thread, int threads) {
    for (int p = thread; p < parts; p += threads) place(task, split(task.considered, p, parts), scratch + p * task.experts);
  });
  forget(task, {task.considered, task.tokens});
}

}  // namespace eitri::portable
