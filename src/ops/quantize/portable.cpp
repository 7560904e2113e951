// quantize.portable.rows: the templates of quantize_rows.h and blocks_rows.h at this level.
#include "ops/quantize/blocks_rows.h"
#include "ops/quantize/quantize_rows.h"

namespace eitri::portable {

void quantize_rows(const QuantizeTask& task, int64_t begin, int64_t end) { EITRI_VEC::quantize_rows_any(task, begin, end); }
void quantize_blocks(const QuantizeBlocksTask& task, int64_t begin, int64_t end) { EITRI_VEC::quantize_blocks_any(task, begin, end); }
float quantize_amax(const QuantizeBlocksTask& task, int64_t begin, int64_t end) { return EITRI_VEC::quantize_amax_any(task, begin, end); }

}  // namespace eitri::portable
