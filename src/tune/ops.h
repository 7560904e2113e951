// The operators as the tuner sees them.
#pragma once

#include <span>

#include "tune/tuned_op.h"

namespace eitri::tune {

/// Every operator, in the order of ops.h.
std::span<const TunedOp> all_tuned_ops();

}  // namespace eitri::tune
