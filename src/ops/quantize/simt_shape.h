// How a SIMT kernel spreads a row over a block, and what a launcher needs to know of such a kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/view.h"
#include "dispatch/kernel.h"

namespace eitri {

/// A machine as block sizes see it.
struct SimtMachine {
  int warp_size = 32;
  int units = 132;  // multiprocessors or compute units
  bool clusters = false;
};
inline SimtMachine machine_of(const Device& device) {
  return {.warp_size = device.warp_size, .units = device.units, .clusters = device.gpu_arch.starts_with("sm_9")};
}

/// Threads of a block, and chunks of 16 bytes that each of them keeps in registers; 0 chunks: rows too long for that are read
/// again in every pass.
struct RowShape {
  int threads = 0, chunks = 0;
  bool operator==(const RowShape&) const = default;
};
/// For rows of `columns` elements, `wide` to a chunk. Few rows take many threads each, for latency; many rows take two chunks a
/// thread, for loads in flight. What a thread keeps leaves room for 1024 threads on every machine.
RowShape row_shape(int64_t columns, int wide, int64_t rows, const SimtMachine& machine);
/// The shape with that many chunks a thread, or more where the row needs them.
RowShape row_shape_with(int64_t columns, int wide, int64_t chunks, const SimtMachine& machine);
/// Row kernels' knobs: chunks of a thread (0: rows are read again), and the registers that a thread shall make do with, so that
/// several blocks share a multiprocessor.
inline constexpr int kChunkValues[] = {1, 2, 4, 0}, kRegisterValues[] = {32, 40, 48, 64};
inline constexpr Knob kRowKnobs[] = {{"chunks", kChunkValues}, {"registers", kRegisterValues}};
enum RowKnob : size_t { kRowChunks, kRowRegisters };
/// The least value of the knob that holds `wanted`.
int registers_for(int wanted);
/// `wanted`, or 32 where a thread has one chunk, there are more rows than units and a unit would hold only one block of so many threads.
int registers_of_rows(int wanted, int64_t rows, const RowShape& shape, const SimtMachine& machine);

/// Dynamic shared memory that a grid of at most two blocks a unit asks for without using it, so that the scheduler spreads its blocks
/// evenly and those of the next kernel, which start early, go to units that are free: where both share a unit they share its issue
/// slots. On an H200 (2026-11-30, `eitri bench`), rmsnorm of 64 x 4096 to f8e4m3 in groups: 2.64 us without, 1.83 with it, 1.89 between kernels that ask for none.
int shared_bytes_of_few(int64_t blocks, const Device& device);

/// Expected microseconds of a kernel that is bound by memory: a launch, and the bytes at nine tenths of the bandwidth.
inline double memory_pass_us(const Device& device, double bytes) { return 2.5 + bytes / (0.9 * device.profile.read_bytes) * 1e6; }

/// Elements in 16 bytes of an input, whose dtype has 4, 2 or 1 bytes.
inline int wide_of(DType x) { return 16 >> (detail::element_bytes(x) >> 1); }

/// A kernel to compile and launch: entry `entry` of `file`, whose only argument is the op's parameter struct, by value.
struct SimtEntry {
  const char* file;  // from src/: "ops/rmsnorm/simt.cuh"
  const char* entry;
  std::vector<std::string> defines;  // "EITRI_X=bf16"
  int threads;
  int64_t blocks;
  Source source() const { return {.file = file, .entry = entry, .defines = defines}; }
};
/// "EITRI_X=bf16": kernels read the value as an enumerator.
template <class T> std::string simt_define(const char* name, const T& value) { return str("EITRI_", name, "=", value); }

/// May threads read and write `wide` elements of every row of the tensor at once? Absent tensors do not matter.
inline bool is_vector_aligned(const View& view, int wide) {
  if (!view.given()) return true;
  const auto bytes = static_cast<int>(detail::element_bytes(view.dtype));  // 0: two elements a byte
  const int vector = bytes != 0 ? wide * bytes : wide / 2;
  const int64_t stride = view.rank > 1 && view.shape[0] > 1 ? view.stride[0] : 0;
  const auto row = static_cast<uintptr_t>(bytes != 0 ? stride * bytes : stride / 2);
  return ((reinterpret_cast<uintptr_t>(view.data) | row) & static_cast<uintptr_t>(std::min(16, vector) - 1)) == 0;  // powers of two
}
/// Rows of this many columns consist of whole chunks, of a power of two elements, and 32 bits count them.
inline bool is_whole_chunks(int64_t columns, int wide) { return (columns & (wide - 1)) == 0 && columns < int64_t{1} << 28; }

/// How a kernel is compiled to reach rows, as in device/row.h. The sources of a row kernel are the entry for `vectors`, and on
/// demand the one for `elements`; grid.vectors says which one a call takes.
enum class RowAccess : uint8_t { elements, vectors };
std::span<const char* const> enum_names(RowAccess);
void define_access(std::vector<std::string>& defines, RowAccess access, int registers);
template <class Entry> std::vector<Source> both_accesses(Entry&& entry) {
  Source rare = entry(RowAccess::elements).source();
  rare.on_demand = true;
  return {entry(RowAccess::vectors).source(), rare};
}

/// Blocks for `rows` of work, one each: kernels loop when there are more rows than blocks.
inline int64_t blocks_for(int64_t rows) {
  constexpr int64_t kMost = 1 << 20;
  return rows < 1 ? 1 : rows < kMost ? rows : kMost;
}

}  // namespace eitri
