// The portable level of the vector tests.
#include "device/vec_level_body.h"

namespace eitri {
VecLevel vec_level_portable() { return EITRI_VEC::level("portable"); }
}  // namespace eitri
