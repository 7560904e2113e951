#include <algorithm>

#include "ops/gemm/panel_kernels.h"

namespace eitri {

// One formula for every panel kernel, so that a launcher needs not know which one will run:
//   A block      up to kScratchRows rows of the whole k, at most four times their bytes (the portable kernel turns i8 into
//                f32), never more than kScratchA
//   sums         f32 or i32 of the block's rows times all columns of the task: they outlive a block of k
//   plain panel  one panel in packed form, when B is not packed
//   fixed        decoded chunks of a panel, a tile buffer, row pointers
int64_t panel_scratch(int64_t m, int64_t k, int64_t panels, int64_t element_bytes, bool plain_b) {
  const int64_t rows = std::min((m + 31) / 32 * 32, kScratchRows);
  const int64_t k_bytes = (k * element_bytes + kStepBytes - 1) / kStepBytes * kStepBytes;
  const int64_t a = std::min(rows * k_bytes * 4, kScratchA);
  const int64_t sums = rows * panels * kPanelColumns * 4;
  const int64_t plain = plain_b ? panel_bytes(k, element_bytes) : 0;
  return (a + sums + plain + kScratchFixed + 63) / 64 * 64;
}

}  // namespace eitri
