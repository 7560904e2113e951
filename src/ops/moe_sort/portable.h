// Counting sort of (token, slot) pairs by expert. O(tokens * top_k + experts) and the fill that the layout asks for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eitri::portable {

/// Checked arguments of moe_sort as plain pointers; strides count elements.
struct SortTask {
  const int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  const int32_t* mask = nullptr;  // null: every expert is here
  int32_t* sorted_ids = nullptr;
  float* sorted_weights = nullptr;
  int32_t* sorted_expert_ids = nullptr;
  int32_t* num_valid = nullptr;
  int32_t* reverse = nullptr;  // null: not wanted
  int64_t reverse_stride = 0;
  int64_t tokens = 0, considered = 0;  // considered <= tokens: rows that count
  int64_t top_k = 0, experts = 0, block = 0, padded = 0, blocks = 0;
};

/// Bytes of scratch for `parts` parts.
size_t sort_scratch(int64_t experts, int parts);
void sort_counting(const SortTask& task, int32_t* scratch);
/// Parts of consecutive tokens are counted and placed by `threads` threads; the same bits as sort_counting.
void sort_counting_parallel(const SortTask& task, int32_t* scratch, int parts);

}  // namespace eitri::portable
