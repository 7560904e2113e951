// Panel kernels for tasks that share a large c: rows of a task then leave for memory as those of a large task do.
#pragma once

#include "ops/gemm/panel_kernels.h"

namespace eitri {

inline constexpr int64_t kStreamBytes = 2 << 20;  // c of this size bypasses the caches, where its rows fill whole lines

namespace amx {
void part_bf16(const PanelTask&);
void part_i8(const PanelTask&);
void part_coded_bf16(const PanelTask&);
void part_coded_i8(const PanelTask&);
}  // namespace amx
namespace amx_emulated {
void part_bf16(const PanelTask&);
void part_i8(const PanelTask&);
void part_coded_bf16(const PanelTask&);
void part_coded_i8(const PanelTask&);
}  // namespace amx_emulated

/// The form of `kernel` for tasks of a call whose whole c has `c_bytes` bytes, to be read once all of it is there.
PanelFn part_kernel(PanelFn kernel, int64_t c_bytes);

}  // namespace eitri
