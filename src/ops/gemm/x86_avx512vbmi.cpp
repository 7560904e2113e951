// gemm.x86_avx512.panel, its coded panels where the machine has VBMI: f8e4m3 by byte tables. x86_avx512_coded.h has the kernels.
#include "ops/gemm/x86_avx512_coded.h"

namespace eitri::avx512vbmi {
void coded_f32(const PanelTask& task) { vec512::run_coded<vec512::UnitF32>(task); }
void coded_bf16(const PanelTask& task) { vec512::run_coded<vec512::UnitBf16>(task); }
void coded_f16(const PanelTask& task) { vec512::run_coded<vec512::UnitF16>(task); }
}  // namespace eitri::avx512vbmi
