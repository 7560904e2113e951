// gemm.portable.panel: the blocked panel kernel in plain C++, vectors of four floats by the compiler. Every machine runs
// it. Loop structure: panel_blocked.h. i8 products are summed in f32 within a chunk of at most 512 elements of k, where
// every partial sum is a whole number below 2^24 and thus exact, then added to i32 sums.
#include <iterator>

#include "ops/gemm/panel_blocked.h"

namespace eitri {

namespace {

using namespace eitri::vec1;

using Four = float __attribute__((vector_size(16)));

/// 2 rows x 16 columns: 8 vectors of sums, 4 of the panel.
struct FloatSums {
  static constexpr int64_t kRows = 2;
  static constexpr bool kFreshSums = false, kCoded = false;
  static constexpr Sums kSums = Sums::f32;
  struct Acc {
    Four v0, v1, v2, v3;
  };
  static EITRI_INLINE Acc zero() { return {Four{}, Four{}, Four{}, Four{}}; }
  static EITRI_INLINE Acc load(const std::byte* p) {
    Acc acc;
    std::memcpy(&acc, p, sizeof acc);
    return acc;
  }
  static EITRI_INLINE void store(const Acc& acc, std::byte* p, bool /*first*/) { std::memcpy(p, &acc, sizeof acc); }
  static EITRI_INLINE Acc columns(const std::byte* b) { return load(b); }
  static EITRI_INLINE void add(Acc& acc, const std::byte* a, const Acc& b) {
    float value;
    std::memcpy(&value, a, sizeof value);
    acc.v0 += value * b.v0;
    acc.v1 += value * b.v1;
    acc.v2 += value * b.v2;
    acc.v3 += value * b.v3;
  }
};

template <DType kType> void widen_row(const std::byte* row, int64_t count, int64_t steps, std::byte* to) {
  for (int64_t k = 0; k < count; ++k) load_as<kType>(row, k).store(to + k * 4);
  const int64_t padding = steps * blocked::kStepDwords - count;
  std::memset(to + count * 4, 0, static_cast<size_t>(padding * 4));
}

struct UnitF32 : FloatSums {
  static constexpr int64_t kElementBytes = 4, kDwordSteps = 1;
  static constexpr bool kInPlace = true;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) { widen_row<DType::f32>(row, count, steps, to); }
};

/// Narrow operands: a dword of a packed tile holds kPer elements of one column, lowest k first.
template <DType kType, int64_t kBytes> struct UnitNarrow : FloatSums {
  static constexpr int64_t kElementBytes = kBytes, kPer = 4 / kBytes, kDwordSteps = kPer;
  static constexpr bool kInPlace = false;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) { widen_row<kType>(row, count, steps, to); }
  static void decode(const std::byte* tile, std::byte* to) {
    for (int64_t k = 0; k < 16 * kPer; ++k) {
      const std::byte* from = tile + k / kPer * 64;
      std::byte* out = to + k / 16 * blocked::kStepTiles + k % 16 * 64;
      for (int64_t column = 0; column < 16; ++column) load_as<kType>(from, column * kPer + k % kPer).store(out + column * 4);
    }
  }
};
using UnitBf16 = UnitNarrow<DType::bf16, 2>;
using UnitF16 = UnitNarrow<DType::f16, 2>;

struct UnitI8 : UnitNarrow<DType::i8, 1> {
  static constexpr bool kFreshSums = true;
  static constexpr Sums kSums = Sums::i32;
  static EITRI_INLINE void store(const Acc& acc, std::byte* p, bool first) {
    float sums[16];
    int32_t whole[16] = {};
    std::memcpy(sums, &acc, sizeof sums);
    if (!first) std::memcpy(whole, p, sizeof whole);
    for (int column = 0; column < 16; ++column) whole[column] += static_cast<int32_t>(sums[column]);
    std::memcpy(p, whole, sizeof whole);
  }
};

/// Every value of a code, in f32.
template <DType kCode> struct CodeTable {
  float value[kCode == DType::i8 || kCode == DType::f8e4m3 ? 256 : 16];
  constexpr CodeTable() : value() {
    for (size_t i = 0; i < std::size(value); ++i) {
      const auto code = static_cast<uint8_t>(i);
      if constexpr (kCode == DType::i8) value[i] = decode_i8(static_cast<int8_t>(code));
      else if constexpr (kCode == DType::i4) value[i] = decode_i4(code);
      else if constexpr (kCode == DType::f4e2m1) value[i] = decode_f4e2m1(code);
      else value[i] = decode_f8e4m3(code);
    }
  }
};
template <DType kCode> constexpr CodeTable<kCode> kCodeTable;

float scale_of(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t k, int64_t column) {
  if (codes.scale == DType::none) return 1.0f;
  const std::byte* at = panel + coded_scale_offset(codes, step) + (k / codes.group * kPanelColumns + column) * codes.scale_width();
  float x = 0;
  if (codes.scale == DType::f32) std::memcpy(&x, at, sizeof x);
  else if (codes.scale == DType::f8e8m0) x = decode_e8m0(std::to_integer<uint8_t>(*at));
  else x = kCodeTable<DType::f8e4m3>.value[std::to_integer<uint8_t>(*at)];
  return x;
}

template <DType kCode> void decode_tile(const PanelCodes& codes, const std::byte* panel, int64_t step, int64_t tile, std::byte* to) {
  constexpr bool kNibbles = kCode == DType::i4 || kCode == DType::f4e2m1;
  constexpr int64_t kPer = kNibbles ? 8 : 4;                           // k in a dword
  constexpr int kNatural[] = {0, 1, 2, 3}, kSwapped[] = {0, 2, 1, 3};  // the byte of each k
  const std::byte* from = panel + coded_tile_offset(codes, step, tile);
  for (int64_t k = 0; k < kDecodedSteps; ++k) {
    std::byte* const out = to + k / 16 * blocked::kStepTiles + k % 16 * 64;
    const int64_t i = k % kPer;
    for (int64_t column = 0; column < 16; ++column) {
      const std::byte* dword = from + k / kPer * 64 + column * 4;
      uint8_t code = 0;
      if constexpr (kNibbles) {
        const int64_t nibble = i % 2 * 4 + i / 2;
        code = unpack_nibble(std::to_integer<uint8_t>(dword[nibble / 2]), static_cast<int>(nibble % 2));
      } else {
        code = std::to_integer<uint8_t>(dword[kCode == DType::i8 ? kNatural[i] : kSwapped[i]]);
      }
      const float x = kCodeTable<kCode>.value[code] * scale_of(codes, panel, step, k, tile * 16 + column);
      std::memcpy(out + column * 4, &x, sizeof x);
    }
  }
}

template <DType kType> struct UnitCoded : FloatSums {
  static constexpr int64_t kElementBytes = kType == DType::f32 ? 4 : 2, kDwordSteps = 2;
  static constexpr bool kInPlace = false, kCoded = true;
  static void convert_a(const std::byte* row, int64_t count, int64_t steps, std::byte* to) { widen_row<kType>(row, count, steps, to); }
  static void decode_step(const PanelCodes& codes, const std::byte* panel, int64_t step, std::byte* to) {
    for (int64_t tile = 0; tile < 2; ++tile) {
      std::byte* const out = to + tile * kTileBytes;
      switch (codes.dtype) {
        case DType::f8e4m3: decode_tile<DType::f8e4m3>(codes, panel, step, tile, out); break;
        case DType::i8: decode_tile<DType::i8>(codes, panel, step, tile, out); break;
        case DType::i4: decode_tile<DType::i4>(codes, panel, step, tile, out); break;
        default: decode_tile<DType::f4e2m1>(codes, panel, step, tile, out);
      }
    }
  }
};
template <DType kType> void run_coded(const PanelTask& task) { run_blocked<UnitCoded<kType>>(task); }

}  // namespace

namespace portable {
void finish_panels(const PanelTask& task, const void* sums, int64_t stride, bool i32) { finish_side_by_side(task, sums, stride, i32); }
void panel_f32(const PanelTask& task) { run_blocked<UnitF32>(task); }
void panel_bf16(const PanelTask& task) { run_blocked<UnitBf16>(task); }
void panel_f16(const PanelTask& task) { run_blocked<UnitF16>(task); }
void panel_i8(const PanelTask& task) { run_blocked<UnitI8>(task); }
void coded_f32(const PanelTask& task) { run_coded<DType::f32>(task); }
void coded_bf16(const PanelTask& task) { run_coded<DType::bf16>(task); }
void coded_f16(const PanelTask& task) { run_coded<DType::f16>(task); }
void coded_i8(const PanelTask& task) { run_blocked<UnitI4<UnitI8>>(task); }
}  // namespace portable

}  // namespace eitri
