// What host and kernels share about the SIMT kernels of moe_sort.
#pragma once

#include <cstdint>

namespace eitri {

/// What a kernel is compiled for.
struct MoeSortForm {
  int threads = 0;   // of a block
  int counters = 0;  // in shared memory: a counter an expert, for one warp or more; 0: counters are in the workspace
  bool operator==(const MoeSortForm&) const = default;
};

/// The argument of all kernels: checked arguments as pointers, strides in elements.
struct MoeSortGrid {
  const int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  const float* weights = nullptr;
  int64_t weights_stride = 0;
  const int32_t* mask = nullptr;   // null: every expert is here
  const int32_t* local = nullptr;  // null: all tokens count
  int32_t* sorted_ids = nullptr;
  float* sorted_weights = nullptr;
  int32_t* sorted_expert_ids = nullptr;
  int32_t* num_valid = nullptr;
  int32_t* reverse = nullptr;  // null: not wanted
  int64_t reverse_stride = 0;
  int64_t tokens = 0, top_k = 0, experts = 0, block = 0;
  int64_t padded = 0, sorted_blocks = 0;  // lengths of sorted_ids and of sorted_expert_ids
  int32_t* counters = nullptr;            // workspace: [parts, experts]
  int64_t parts = 0;
  int64_t blocks = 0;   // of the counting and placing kernels
  int32_t id_bits = 0;  // experts <= 2^id_bits
  int32_t vectors = 0;  // sorted_ids and sorted_weights begin at multiples of 16 bytes
};

}  // namespace eitri
