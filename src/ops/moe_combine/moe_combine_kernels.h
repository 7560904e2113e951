// Weighted sums of rows that an index names, one function per instruction level: pointers and sizes only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "eitri/enums.hpp"

namespace eitri {

struct MoeCombineTask {
  const std::byte* y = nullptr;
  int64_t y_stride = 0;  // bytes, like all strides here
  int64_t y_rows = 0;
  DType y_dtype = DType::bf16;         // of `shared` too
  const std::byte* reverse = nullptr;  // i32
  int64_t reverse_stride = 0;
  const std::byte* weights = nullptr;  // f32; null: 1
  int64_t weights_stride = 0;
  const std::byte* shared = nullptr;  // null: none
  int64_t shared_stride = 0;
  std::byte* out = nullptr;
  int64_t out_stride = 0;
  DType out_dtype = DType::bf16;
  int64_t hidden = 0, top_k = 0;
  int64_t local = int64_t{1} << 62;     // tokens from there on become 0: on the CPU
  const int32_t* num_local = nullptr;  // the same where only the device can read it; null: all tokens
};

/// Work is cut into pieces of this many columns of one token, so that a single token can use several threads.
inline constexpr int64_t kCombineColumns = 1024;

namespace portable {
void combine_pieces(const MoeCombineTask& task, int64_t begin, int64_t end);
}
namespace avx2 {
void combine_pieces(const MoeCombineTask& task, int64_t begin, int64_t end);
}
namespace avx512 {
void combine_pieces(const MoeCombineTask& task, int64_t begin, int64_t end);
}

}  // namespace eitri
