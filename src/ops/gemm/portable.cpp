// gemm.portable.panel: the blocked panel kernel in plain C++, vectors of four floats by the compiler. Every machine runs
// it. Loop structure: panel_blocked.h. i8 products are summed in f32 within a chunk of at most 512 elements of k, where
// every partial sum is a whole number below 2^24 and thus exact, then added to i32 sums.
#include "ops/gemm/panel_blocked.h"

namespace eitri {

namespace {

using namespace eitri::vec1;

using Four = float __attribute__((vector_size(16)));

/// 2 rows x 16 columns: 8 vectors of sums, 4 of the panel.
struct FloatSums {
  static constexpr int64_t kRows = 2;
  static constexpr bool kFreshSums = false;
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

}  // namespace

namespace portable {
void finish_panels(const PanelTask& task, const void* sums, int64_t stride, bool i32) { finish_side_by_side(task, sums, stride, i32); }
void panel_f32(const PanelTask& task) { run_blocked<UnitF32>(task); }
void panel_bf16(const PanelTask& task) { run_blocked<UnitBf16>(task); }
void panel_f16(const PanelTask& task) { run_blocked<UnitF16>(task); }
void panel_i8(const PanelTask& task) { run_blocked<UnitI8>(task); }
}  // namespace portable

}  // namespace eitri
