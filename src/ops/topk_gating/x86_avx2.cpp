// topk_gating.x86_avx2.rows: the template of topk_gating_rows.h at this level.
#include "ops/topk_gating/topk_gating_rows.h"

namespace eitri::avx2 {

void gate_tokens(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch) { EITRI_VEC::gate_any(task, begin, end, scratch); }

}  // namespace eitri::avx2
