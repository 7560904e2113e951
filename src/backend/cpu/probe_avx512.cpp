// Peak and bandwidth probes of the AVX-512 level.
#include <immintrin.h>

#include "backend/cpu/probe.h"

namespace eitri::probe {

double fma_avx512(int64_t rounds) {
  constexpr int kChains = 12;
  __m512 acc[kChains], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
  for (auto& a : acc) a = y;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& a : acc) a = _mm512_fmadd_ps(a, x, y);
  __m512 sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  volatile float sink = _mm512_cvtss_f32(sum);
  (void)sink;
  return 32.0 * kChains * static_cast<double>(rounds);
}

double i8_avx512(int64_t rounds) {
  constexpr int kChains = 12;
  __m512i acc[kChains], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
  for (auto& a : acc) a = _mm512_setzero_si512();
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& a : acc) a = _mm512_dpbusd_epi32(a, x, y);
  __m512i sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  volatile int sink = _mm512_cvtsi512_si32(sum);
  (void)sink;
  return 128.0 * kChains * static_cast<double>(rounds);
}

uint64_t read_avx512(const std::byte* data, size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a;
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(data + i + 2048), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(data + i + 2112), _MM_HINT_T0);
    a = _mm512_or_si512(a, _mm512_loadu_si512(data + i));
    b = _mm512_or_si512(b, _mm512_loadu_si512(data + i + 64));
  }
  alignas(64) uint64_t lane[8];
  _mm512_store_si512(lane, _mm512_or_si512(a, b));
  return lane[0] | lane[1] | lane[2] | lane[3] | lane[4] | lane[5] | lane[6] | lane[7];
}

}  // namespace eitri::probe
