// The avx512 level of the vector tests.
#include "device/vec_level_body.h"

namespace eitri {
VecLevel vec_level_avx512() { return EITRI_VEC::level("avx512"); }
}  // namespace eitri
