// What host and kernel share about the SIMT kernel of grouped_gemm.
#pragma once

#include "ops/gemm/simt_params.h"

namespace eitri {

/// The argument of grouped_gemm_tile. A matrix of b, of bias and of b_scale is an expert's.
struct GroupedGemmGrid {
  GemmOperand a = {}, b = {};
  GemmFinish finish = {};
  const int32_t* sorted_ids = nullptr;
  const int32_t* sorted_expert_ids = nullptr;
  const int32_t* num_valid = nullptr;
  int64_t tokens = 0, capacity = 0, experts = 0, k = 0;
  int64_t block = 0;            // positions of one expert
  int64_t tiles_per_block = 0;  // tile rows that cover a block
  int64_t m_tiles = 0, n_tiles = 0;
  int64_t blocks = 0;
  int32_t gather_tokens = 0;  // rows of a are tokens, not positions
};

}  // namespace eitri
