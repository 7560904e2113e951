// What panel kernels make of their tuning fields, for tuners: where two values give the same blocks, one of them is tried.
#pragma once

#include "ops/gemm/panel_kernels.h"

namespace eitri {

/// Blocks of a task; equal ones, equal work.
struct PanelBlocking {
  int64_t rows = 0, steps = 0, chunk = 0;
  bool operator==(const PanelBlocking&) const = default;
};

namespace amx {
PanelBlocking blocking(const PanelTask&, int element_bytes);
}
namespace amx_emulated {
PanelBlocking blocking(const PanelTask&, int element_bytes);
}
namespace avx512 {
PanelBlocking blocking(const PanelTask&);
}

}  // namespace eitri
