// GPUs by architecture, and where a DeviceId leads.
#include <array>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "base/error.h"

namespace eitri {

namespace {

constexpr std::array kArchs = {"sm_90a", "gfx942", "gfx950"};

/// Rates of a whole device; a smaller one of the same architecture has its share. sm_90a as measured on an H200 (burst), the
/// others from their data sheets, of which kernels reach some 80 %.
struct Rates {
  const char *arch, *name;
  int units, warp_size, shared_bytes;
  int64_t l2_bytes;
  double bf16_flops, i8_ops, f32_flops, read_bytes, l2_bandwidth;
};
constexpr Rates kRates[] = {
    {"sm_90a", "NVIDIA H200", 132, 32, 227 << 10, 60 << 20, 795e12, 1600e12, 60e12, 4.69e12, 5.95e12},
    {"gfx942", "AMD Instinct MI300X", 304, 64, 64 << 10, 4 << 20, 1000e12, 2000e12, 130e12, 4.2e12, 10e12},
    {"gfx950", "AMD Instinct MI350X", 256, 64, 160 << 10, 4 << 20, 1800e12, 3600e12, 120e12, 6.4e12, 12e12},
};

const Rates& rates_of(std::string_view arch) {
  for (const Rates& r : kRates)
    if (arch == r.arch) return r;
  return kRates[0];
}

}  // namespace

Profile nominal_profile(const Device& device) {
  const Rates& r = rates_of(device.gpu_arch);
  const double share = static_cast<double>(device.units) / r.units;
  return {.threads = 1,
          .bf16_flops = r.bf16_flops * share,
          .i8_ops = r.i8_ops * share,
          .f32_flops = r.f32_flops * share,
          .read_bytes = r.read_bytes,
          .l2_bytes = r.l2_bandwidth * share};
}

std::span<const char* const> nominal_gpu_archs() { return kArchs; }

const Device& nominal_gpu(std::string_view arch) {
  static const std::array devices = [] {
    std::array<Device, kArchs.size()> all;
    for (size_t i = 0; i < all.size(); ++i) {
      const Rates& r = kRates[i];
      all[i].id = {i == 0 ? DeviceKind::cuda : DeviceKind::hip, 0};
      all[i].name = r.name;
      all[i].gpu_arch = r.arch;
      all[i].warp_size = r.warp_size;
      all[i].units = r.units;
      all[i].shared_bytes = r.shared_bytes;
      all[i].l2_bytes = r.l2_bytes;
      all[i].profile = nominal_profile(all[i]);
    }
    return all;
  }();
  std::string known;
  for (const Device& device : devices) {
    if (device.gpu_arch == arch) return device;
    known += str(known.empty() ? "" : ", ", device.gpu_arch);
  }
  fail(Code::invalid_argument, str("target is \"", arch, "\"; expected one of ", known));
}

const Device& device_for(DeviceId id) {
  if (id.kind == DeviceKind::cpu) return cpu_device();
  if (id.kind == DeviceKind::cuda) return cuda::device(id.index);
  fail(Code::unsupported,
       "tensors are on an AMD GPU: its kernels are compiled and emulated, but this version has no backend that runs them");
}

}  // namespace eitri
