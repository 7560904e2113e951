// Which text of a kernel a tuned row was measured with.
#pragma once

#include <string_view>

#include "dispatch/kernel.h"

namespace eitri {

/// 12 hex digits of a hash over the files of the op's folder that kernels of the target are made of, and over everything in
/// src/ops and src/device that they include; empty for an op that the build does not know. Made by cmake/kernel_revisions.cmake.
std::string_view kernel_revision(std::string_view op, Target target);

}  // namespace eitri
