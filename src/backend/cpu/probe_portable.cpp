// Probes that any machine runs.
#include "backend/cpu/probe.h"

#include <cstring>

namespace eitri::probe {

double fma_portable(int64_t rounds) {
  constexpr int kChains = 32;  // the compiler may vectorise them to its baseline
  float acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = 1e-3f * static_cast<float>(i);
  for (int64_t r = 0; r < rounds; ++r)
    for (float& a : acc) a = a * 0.999f + 1e-3f;
  float sum = 0;
  for (const float a : acc) sum += a;
  volatile float sink = sum;
  (void)sink;
  return 2.0 * kChains * static_cast<double>(rounds);
}

uint64_t read_portable(const std::byte* data, size_t bytes) {
  uint64_t lane[8] = {};
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    __builtin_prefetch(data + i + 2048);
    uint64_t line[8];
    std::memcpy(line, data + i, 64);
    for (int j = 0; j < 8; ++j) lane[j] |= line[j];
  }
  return lane[0] | lane[1] | lane[2] | lane[3] | lane[4] | lane[5] | lane[6] | lane[7];
}

}  // namespace eitri::probe
