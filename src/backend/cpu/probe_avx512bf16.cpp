// Peak probe of AVX512-BF16: half the fp32 FMA rate on Intel, twice on Zen 4.
#include <immintrin.h>

#include "backend/cpu/probe.h"

namespace eitri::probe {

double bf16_avx512bf16(int64_t rounds) {
  constexpr int kChains = 12;
  __m512 acc[kChains];
  const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f00)), y = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3e80));
  for (auto& a : acc) a = _mm512_setzero_ps();
  for (int64_t r = 0; r < rounds; ++r)
    for (auto& a : acc) a = _mm512_dpbf16_ps(a, x, y);
  __m512 sum = acc[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  volatile float sink = _mm512_cvtss_f32(sum);
  (void)sink;
  return 64.0 * kChains * static_cast<double>(rounds);
}

}  // namespace eitri::probe
