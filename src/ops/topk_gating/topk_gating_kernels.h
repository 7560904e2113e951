// The router, one function per instruction level: pointers and sizes only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

/// `Score` of eitri/ops.hpp, which a kernel file does not include.
enum class GatingScore : uint8_t { softmax, sigmoid, sqrt_softplus };

struct GatingTask {
  const std::byte* logits = nullptr;
  int64_t logits_stride = 0;  // bytes
  DType dtype = DType::f32;
  const float* bias = nullptr;  // null: none
  float* weights = nullptr;
  int64_t weights_stride = 0;
  int32_t* ids = nullptr;
  int64_t ids_stride = 0;
  int64_t experts = 0, top_k = 0;
  int64_t groups = 1, topk_groups = 1;
  GatingScore score = GatingScore::softmax;
  bool renormalize = false;
  float scale = 1;
};

/// Where a thread keeps a token's numbers: in doubles, each array padded to whole vectors.
struct GatingScratch {
  static constexpr int64_t padded(int64_t n) { return (n + 7) / 8 * 8; }
  static constexpr int64_t bytes(int64_t experts, int64_t top_k, int64_t groups) {
    return (3 * padded(experts) + padded(top_k) + padded(groups)) * 8;
  }
};

namespace portable {
void gate_tokens(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch);
}
namespace avx2 {
void gate_tokens(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch);
}
namespace avx512 {
void gate_tokens(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch);
}

}  // namespace eitri
