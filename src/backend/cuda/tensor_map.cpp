#include "backend/cuda/tensor_map.h"

#include <memory>

#include "backend/cuda/cuda.h"
#include "base/error.h"
#include "base/hash.h"

namespace eitri::cuda {

namespace {

/// CUtensorMapDataType; packed fp4 goes as bytes.
int data_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return 7;
    case DType::f16: return 6;
    case DType::bf16: return 9;
    case DType::i32: return 3;
    case DType::i64: return 4;
    default: return 0;
  }
}

TensorMapBits encode(const TensorBox& b) {
  require(b.rank >= 1 && b.rank <= TensorBox::kMaxRank, "tensor map: rank is ", int{b.rank}, "; expected 1 to 5");
  require(bits(b.dtype) >= 8, "tensor map: dtype is ", b.dtype, "; expected one of whole bytes");
  require(reinterpret_cast<uintptr_t>(b.data) % 16 == 0, "tensor map: data is not aligned to 16 bytes");
  uint64_t extent[5] = {}, stride[5] = {};
  uint32_t box[5] = {}, step[5] = {1, 1, 1, 1, 1};
  for (int i = 0; i < b.rank; ++i) {
    require(b.extent[i] > 0 && b.extent[i] <= int64_t{1} << 32, "tensor map: extent ", i, " is ", b.extent[i], "; expected 1 to 2^32");
    require(b.box[i] > 0 && b.box[i] <= 256, "tensor map: box ", i, " is ", b.box[i], "; expected 1 to 256");
    extent[i] = static_cast<uint64_t>(b.extent[i]);
    box[i] = static_cast<uint32_t>(b.box[i]);
    if (i + 1 == b.rank) continue;
    require(b.stride[i] > 0 && b.stride[i] % 16 == 0, "tensor map: stride ", i, " is ", b.stride[i], " bytes; expected a multiple of 16");
    stride[i] = static_cast<uint64_t>(b.stride[i]);
  }
  constexpr int kNoInterleave = 0, kPromote256 = 3, kZeroFill = 0;
  TensorMapBits out = {};
  require_ok(driver()->tensor_map_encode(&out, data_type(b.dtype), static_cast<uint32_t>(b.rank), const_cast<void*>(b.data), extent, stride,
                                         box, step, kNoInterleave, static_cast<int>(b.swizzle), kPromote256, kZeroFill),
             "encode a tensor map");
  return out;
}

}  // namespace

const TensorMapBits& tensor_map(const TensorBox& box) {
  struct Slot {
    TensorBox box;
    TensorMapBits bits;
  };
  constexpr size_t kSlots = 256;
  static thread_local std::unique_ptr<Slot[]> slots = std::make_unique<Slot[]>(kSlots);
  uint64_t hash =
      hash_mix(reinterpret_cast<uintptr_t>(box.data), static_cast<uint64_t>(box.extent[0]) << 32 ^ static_cast<uint64_t>(box.extent[1]));
  hash = hash_mix(hash,
                  static_cast<uint64_t>(box.box[0]) << 32 ^ static_cast<uint64_t>(box.box[1]) ^ static_cast<uint64_t>(box.stride[0]) << 16);
  Slot& slot = slots[hash % kSlots];
  if (slot.box.data == nullptr || !(slot.box == box)) {
    slot.bits = encode(box);
    slot.box = box;
  }
  return slot.bits;
}

}  // namespace eitri::cuda
