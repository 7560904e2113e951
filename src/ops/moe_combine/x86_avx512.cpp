// moe_combine.x86_avx512.rows: the template of moe_combine_rows.h at this level.
#include "ops/moe_combine/moe_combine_rows.h"

namespace eitri::avx512 {

void combine_pieces(const MoeCombineTask& task, int64_t begin, int64_t end) { EITRI_VEC::combine_any(task, begin, end); }

}  // namespace eitri::avx512
