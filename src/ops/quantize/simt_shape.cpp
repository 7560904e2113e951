#include "ops/quantize/simt_shape.h"

#include <algorithm>

namespace eitri {

RowShape row_shape_with(int64_t columns, int wide, int64_t chunks, const SimtMachine& machine) {
  constexpr int64_t kMaxThreads = 1024, kMaxChunks = 4;
  const int64_t vectors = std::max<int64_t>(1, (columns + wide - 1) / wide);
  for (; chunks > 0 && chunks <= kMaxChunks; chunks *= 2) {
    const int64_t each = (vectors + chunks - 1) / chunks, threads = (each + machine.warp_size - 1) / machine.warp_size * machine.warp_size;
    // 64 registers a thread at 1024 threads.
    if (threads <= kMaxThreads / std::max<int64_t>(1, chunks / 2)) return {static_cast<int>(threads), static_cast<int>(chunks)};
  }
  return {static_cast<int>(kMaxThreads), 0};
}

RowShape row_shape(int64_t columns, int wide, int64_t rows, const SimtMachine& machine) {
  // With up to two rows a unit, a row's own time is what counts.
  return row_shape_with(columns, wide, rows <= 2 * int64_t{machine.units} ? 1 : 2, machine);
}

std::span<const char* const> enum_names(RowAccess) {
  static constexpr const char* kNames[] = {"elements", "vectors"};
  return kNames;
}

int registers_for(int wanted) {
  for (const int value : kRegisterValues)
    if (value >= wanted) return value;
  return kRegisterValues[std::size(kRegisterValues) - 1];
}

int registers_of_rows(int wanted, int64_t rows, const RowShape& shape, const SimtMachine& machine) {
  return shape.chunks == 1 && rows > machine.units && 65536 / (wanted * shape.threads) < 2 ? kRegisterValues[0] : wanted;
}

int shared_bytes_of_few(int64_t blocks, const Device& device) {
  const int64_t a_unit = (blocks + device.units - 1) / device.units;
  return a_unit < 1 || a_unit > 2 ? 0 : device.shared_bytes / static_cast<int>(a_unit + 1) + 1024;
}

void define_access(std::vector<std::string>& defines, RowAccess access, int registers) {
  defines.push_back(simt_define("ROWS", access));
  defines.push_back(simt_define("REGISTERS", access == RowAccess::vectors ? registers : 64));
}

bool is_vector_aligned(const View& view, int wide) {
  if (!view.given()) return true;
  const int64_t bytes = std::min<int64_t>(16, int64_t{wide} * bits(view.dtype) / 8);
  const int64_t rows = view.rank > 1 ? view.shape[0] : 1;
  return reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) == 0 &&
         (rows <= 1 || view.stride[0] * bits(view.dtype) / 8 % bytes == 0);
}

}  // namespace eitri
