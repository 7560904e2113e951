// A device as routing sees it: name, instruction level or architecture, units, and the limits that floors are computed from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.h"
#include "eitri/types.hpp"

namespace eitri {

/// Instruction levels of the CPU backend, each including the ones before it. `x86_amx_emulated` runs the AMX kernels
/// with the tile instructions done in software: for tests on machines without AMX.
enum class Isa : uint8_t { portable, x86_avx2, x86_avx512, x86_amx_emulated, x86_amx };
std::span<const char* const> enum_names(Isa);

/// The machine's limits for `threads` threads. Defaults are nominal until `measured`.
struct Profile {
  int threads = 1;
  double bf16_flops = 0;  // flop/s of the fastest bf16 unit at the device's level
  double i8_ops = 0;      // op/s
  double f32_flops = 0;
  double read_bytes = 0;  // bytes/s, from memory that no cache holds
  double l2_bytes = 0;    // bytes/s, all threads
  bool measured = false;
  bool noisy = false;  // measured while other programs had the cores: measured again at the next chance
};

struct Device {
  DeviceId id = {};
  std::string name;         // "Intel(R) Xeon(R) Processor"
  Isa isa = Isa::portable;  // the level in use, forced or detected
  bool amx = false;         // the real thing, permission granted
  bool avx512_bf16 = false, avx512_vbmi = false;
  bool avx512_fp16 = false;
  std::string gpu_arch;  // "sm_90a", "gfx942"; empty on a CPU
  int warp_size = 1;
  int units = 1;         // cores that this process may use; multiprocessors or compute units
  int shared_bytes = 0;  // that a block may have
  int64_t l1_bytes = 32 << 10;
  int64_t l2_bytes = 1 << 20;
  int64_t l3_bytes = 0;
  Profile profile;
  std::string_view arch() const;  // "x86_amx", "sm_90a": the name in tuned files
  bool is_gpu() const { return id.kind != DeviceKind::cpu; }
  /// Peak rate in flop/s for a math dtype (bf16 and f16 share one unit only on AMX-less levels).
  double peak(DType math) const;
};

/// The device that tensors are on. Throws Error{device_error} when the process has none of that kind and number.
const Device& device_for(DeviceId id);

/// A GPU that need not be there, as its maker describes it: for compiling ahead, explain and the compile-only tests. Throws
/// Error{invalid_argument} that lists the known architectures.
const Device& nominal_gpu(std::string_view arch);
std::span<const char* const> nominal_gpu_archs();
/// Limits of a GPU of this architecture and number of units.
Profile nominal_profile(const Device& device);

}  // namespace eitri
