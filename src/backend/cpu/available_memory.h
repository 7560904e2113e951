// How much memory this process may still take.
#pragma once

#include <cstddef>

namespace eitri {

/// Bytes: what the system says is available, within the limit of the process's control group. Very large when neither is known.
size_t available_memory();

}  // namespace eitri
