// The avx2 level of the vector tests.
#include "device/vec_level_body.h"

namespace eitri {
VecLevel vec_level_avx2() { return EITRI_VEC::level("avx2"); }
}  // namespace eitri
