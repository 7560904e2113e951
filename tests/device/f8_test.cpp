// narrow_f8 and the vector stores made of it against the codecs of base/numeric.h: every sign, exponent and upper half of a mantissa,
// with lower halves around every rounding boundary.
#include <gtest/gtest.h>

#include <vector>

#include "backend/cpu/cpu.h"
#include "base/numeric.h"
#include "device/f8_level.h"
#include "device/narrow_f8.h"

namespace eitri {
namespace {

template <class F> void for_each_float(F&& f) {
  for (uint32_t high = 0; high < 0x10000; ++high)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) f(bits_float(high << 16 | low));
}

TEST(NarrowF8, scalar_equals_the_codecs) {
  int64_t wrong = 0;
  for_each_float([&](float x) {
    wrong += narrow_f8<F8e4m3>(x) != encode_f8e4m3(x);
    wrong += narrow_f8<F8e4m3fnuz>(x) != encode_f8e4m3fnuz(x);
    wrong += narrow_f8<F8e5m2>(x) != encode_f8e5m2(x);
  });
  EXPECT_EQ(wrong, 0);
}

TEST(NarrowF8, vectors_equal_the_codecs) {
  std::vector<float> x;
  for_each_float([&](float v) { x.push_back(v); });
  std::vector<const F8Level*> levels = {&kPortableF8};
#if EITRI_X86
  if (cpu_device().isa >= Isa::x86_avx2) levels.push_back(&kAvx2F8);
  if (cpu_device().isa >= Isa::x86_avx512) levels.push_back(&kAvx512F8);
#endif
  for (const F8Level* level : levels) {
    std::vector<uint8_t> codes(x.size() + 1, 0xaa);
    int64_t wrong = 0;
    level->e4m3(x.data(), codes.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) wrong += codes[i] != encode_f8e4m3(x[i]);
    EXPECT_EQ(wrong, 0) << level->name;
    level->e4m3fnuz(x.data(), codes.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) wrong += codes[i] != encode_f8e4m3fnuz(x[i]);
    EXPECT_EQ(wrong, 0) << level->name;
    EXPECT_EQ(codes.back(), 0xaa) << level->name;
    for (int64_t n = 0; n < 40; ++n) {
      std::vector<uint8_t> few(static_cast<size_t>(n) + 8, 0xaa);
      level->e4m3(x.data() + 98304, few.data(), n);
      for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(few[static_cast<size_t>(n + i)], 0xaa) << level->name << " wrote beyond " << n;
    }
  }
}

}  // namespace
}  // namespace eitri
