// A device as routing sees it: name, instruction level, units, and the measured limits that floors are computed from.
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
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  int units = 1;  // cores that this process may use
  int64_t l1_bytes = 32 << 10;
  int64_t l2_bytes = 1 << 20;
  int64_t l3_bytes = 0;
  Profile profile;
  std::string_view arch() const;  // "x86_amx": the name in tuned files
  /// Peak rate in flop/s for a math dtype (bf16 and f16 share one unit only on AMX-less levels).
  double peak(DType math) const;
};

}  // namespace eitri
