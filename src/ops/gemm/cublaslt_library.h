// The functions of libcublasLt that Eitri calls; its types as its ABI has them, so that no header of the toolkit is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cuda/driver.h"

namespace eitri::cublaslt {

using cuda::Handle;

struct Algorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8];
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

enum DataType : int { kF32 = 0, kF16 = 2, kI8 = 3, kI32 = 10, kBf16 = 14, kF8e4m3 = 28 };  // cudaDataType
enum ComputeType : int { kCompute32F = 68, kCompute32I = 72 };
enum DescAttribute : int {
  kTransA = 3,
  kEpilogue = 7,
  kBiasPointer = 8,
  kBiasBatchStride = 10,
  kScaleAPointer = 17,
  kScaleBPointer = 18,
  kBiasType = 26
};
enum LayoutAttribute : int { kBatchCount = 5, kBatchOffset = 6 };
enum PreferenceAttribute : int { kMaxWorkspace = 1, kReductionMask = 3, kAlignA = 5, kAlignB = 6, kAlignC = 7, kAlignD = 8 };
inline constexpr int kTransposed = 1, kEpilogueBias = 4;
/// Partial sums of a split k are added in the compute type, in a fixed order; never in the type of the output.
inline constexpr uint32_t kReduceInComputeType = 2;

/// Results are cublasStatus_t; 0 is success.
struct Library {
  size_t (*get_version)() = nullptr;
  int (*create)(Handle*) = nullptr;
  int (*desc_create)(Handle*, int, int) = nullptr;
  int (*desc_set)(Handle, int, const void*, size_t) = nullptr;
  int (*desc_destroy)(Handle) = nullptr;
  int (*layout_create)(Handle*, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*layout_set)(Handle, int, const void*, size_t) = nullptr;
  int (*layout_destroy)(Handle) = nullptr;
  int (*preference_create)(Handle*) = nullptr;
  int (*preference_set)(Handle, int, const void*, size_t) = nullptr;
  int (*preference_destroy)(Handle) = nullptr;
  int (*heuristic)(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, Heuristic*, int*) = nullptr;
  int (*matmul)(Handle, Handle, const void*, const void*, Handle, const void*, Handle, const void*, const void*, Handle, void*, Handle,
                const Algorithm*, void*, size_t, Handle) = nullptr;
};

/// Loaded on the first call; null where there is none, and library_absence() says why.
const Library* library();
const std::string& library_absence();

}  // namespace eitri::cublaslt
