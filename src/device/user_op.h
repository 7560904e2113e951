// What the kernel of a user op (src/jit/user_op.h) sees of its arguments: tensors as declared, and 16-bit floats.
#pragma once

#include "device/simt.h"

namespace eitri::EITRI_SIMT {

/// One argument of a call; UserOp fills in the same struct.
struct UserArgument {
  void* data;
  int64_t shape[4];
  int64_t stride[4];
  double real;
  int64_t integer;
};
/// What a kernel is launched with, by value.
template <int kArguments> struct UserArguments {
  int64_t elements, blocks;  // of the first output; of the grid
  int64_t extent[16];
  UserArgument argument[kArguments];
};

struct bf16 {
  uint16_t bits;
  bf16() = default;
  EITRI_INLINE bf16(float x) : bits(to_bf16(x)) {}
  EITRI_INLINE operator float() const { return from_bf16(bits); }
};
struct f16 {
  uint16_t bits;
  f16() = default;
  EITRI_INLINE f16(float x) : bits(to_f16(x)) {}
  EITRI_INLINE operator float() const { return from_f16(bits); }
};

template <class T, int kRank> struct UserTensor {
  T* data;
  int64_t shape[kRank];
  EITRI_INLINE explicit UserTensor(const UserArgument& a) : data(static_cast<T*>(a.data)) {
    EITRI_UNROLL for (int d = 0; d < kRank; ++d) shape[d] = a.shape[d];
  }
  template <class... I> EITRI_INLINE T& operator()(I... index) const {
    static_assert(sizeof...(I) == kRank, "one index per dimension");
    int64_t at = 0;
    int d = 0;
    ((at = at * shape[d++] + static_cast<int64_t>(index)), ...);
    return data[at];
  }
  EITRI_INLINE T& operator[](int64_t i) const { return data[i]; }
  EITRI_INLINE int64_t size() const {
    int64_t n = 1;
    EITRI_UNROLL for (int d = 0; d < kRank; ++d) n *= shape[d];
    return n;
  }
  EITRI_INLINE int64_t stride(int dim) const {
    int64_t step = 1;
    EITRI_UNROLL for (int d = kRank - 1; d > 0; --d) step *= d > dim ? shape[d] : 1;
    return step;
  }
};

template <class T, int kRank> struct UserStridedTensor {
  T* data;
  int64_t shape[kRank], strides[kRank];
  EITRI_INLINE explicit UserStridedTensor(const UserArgument& a) : data(static_cast<T*>(a.data)) {
    EITRI_UNROLL for (int d = 0; d < kRank; ++d) shape[d] = a.shape[d], strides[d] = a.stride[d];
  }
  template <class... I> EITRI_INLINE T& operator()(I... index) const {
    static_assert(sizeof...(I) == kRank, "one index per dimension");
    int64_t at = 0;
    int d = 0;
    ((at += static_cast<int64_t>(index) * strides[d++]), ...);
    return data[at];
  }
  EITRI_INLINE int64_t size() const {
    int64_t n = 1;
    EITRI_UNROLL for (int d = 0; d < kRank; ++d) n *= shape[d];
    return n;
  }
  EITRI_INLINE int64_t stride(int dim) const { return strides[dim]; }
};

}  // namespace eitri::EITRI_SIMT
