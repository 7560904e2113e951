// topk_gating.portable.rows: the template of topk_gating_rows.h at this level.
#include "ops/topk_gating/topk_gating_rows.h"

namespace eitri::portable {

void gate_tokens(const GatingTask& task, int64_t begin, int64_t end, std::byte* scratch) { EITRI_VEC::gate_any(task, begin, end, scratch); }

}  // namespace eitri::portable
