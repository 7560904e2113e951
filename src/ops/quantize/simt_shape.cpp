#include "ops/quantize/simt_shape.h"

#include <algorithm>
#include <bit>

namespace eitri {

namespace {

/// n / d rounded up, for a power of two: every call asks, and a division of 64 bits costs as much as a check of a tensor.
int64_t parts_of(int64_t n, int64_t d) { return (n + d - 1) >> std::countr_zero(static_cast<uint64_t>(d)); }

}  // namespace

RowShape row_shape_with(int64_t columns, int wide, int64_t chunks, const SimtMachine& machine) {
  constexpr int64_t kMaxThreads = 1024, kMaxChunks = 4;
  const int64_t vectors = std::max<int64_t>(1, parts_of(columns, wide));
  for (; chunks > 0 && chunks <= kMaxChunks; chunks *= 2) {
    const int64_t threads = parts_of(parts_of(vectors, chunks), machine.warp_size) * machine.warp_size;
    // 64 registers a thread at 1024 threads.
    if (threads * std::max<int64_t>(1, chunks / 2) <= kMaxThreads) return {static_cast<int>(threads), static_cast<int>(chunks)};
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
  if (blocks < 1 || blocks > 2 * int64_t{device.units}) return 0;
  return (blocks <= device.units ? device.shared_bytes / 2 : device.shared_bytes / 3) + 1024;
}

void define_access(std::vector<std::string>& defines, RowAccess access, int registers) {
  defines.push_back(simt_define("ROWS", access));
  defines.push_back(simt_define("REGISTERS", access == RowAccess::vectors ? registers : 64));
}

}  // namespace eitri
