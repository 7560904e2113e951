#include "device/f8_level_body.h"

namespace eitri {

const F8Level kAvx2F8 = {"x86_avx2", EITRI_VEC::store_e4m3, EITRI_VEC::store_e4m3fnuz};

}  // namespace eitri
