// rmsnorm.portable.rows: the template of rmsnorm_rows.h at this level.
#include "ops/rmsnorm/rmsnorm_rows.h"

namespace eitri::portable {

void rmsnorm_rows(const RmsNormTask& task, int64_t begin, int64_t end, float* scratch) {
  EITRI_VEC::rmsnorm_any(task, begin, end, scratch);
}

}  // namespace eitri::portable
