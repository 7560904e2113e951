// Peak probes of the AVX2 level.
#include <immintrin.h>

#include "backend/cpu/probe.h"

namespace eitri::probe {

double fma_avx2(int64_t rounds) {
  constexpr int kChains = 10;  // 2 units x 4-5 cycles of latency
  __m256 acc[kChains], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  for (auto& a : acc) a = y;
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& a : acc) a = _mm256_fmadd_ps(a, x, y);
  __m256 sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_ps(sum, acc[i]);
  volatile float sink = _mm256_cvtss_f32(sum);
  (void)sink;
  return 16.0 * kChains * static_cast<double>(rounds);
}

double i8_avx2(int64_t rounds) {
  // vpmaddwd + add on sign-extended bytes: what exact int8 costs without VNNI (vpmaddubsw saturates).
  constexpr int kChains = 8;
  __m256i acc[kChains], x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5);
  for (auto& a : acc) a = _mm256_setzero_si256();
  for (int64_t r = 0; r < rounds; ++r) {
    for (auto& a : acc) a = _mm256_add_epi32(a, _mm256_madd_epi16(x, y));
    x = _mm256_xor_si256(x, y);  // keeps the products from being hoisted
  }
  __m256i sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  volatile int sink = _mm256_cvtsi256_si32(sum);
  (void)sink;
  return 32.0 * kChains * static_cast<double>(rounds);
}

}  // namespace eitri::probe
