// quantize.portable.rows: the template of quantize_rows.h at this level.
#include "ops/quantize/quantize_rows.h"

namespace eitri::portable {

void quantize_rows(const QuantizeTask& task, int64_t begin, int64_t end) { EITRI_VEC::quantize_rows_any(task, begin, end); }

}  // namespace eitri::portable
