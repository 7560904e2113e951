// activation.portable.rows: the template of activation_rows.h at this level.
#include "ops/activation/activation_rows.h"

namespace eitri::portable {

void activate_rows(const ActivationTask& task, int64_t begin, int64_t end, float* scratch) {
  EITRI_VEC::activate_any(task, begin, end, scratch);
}

}  // namespace eitri::portable
