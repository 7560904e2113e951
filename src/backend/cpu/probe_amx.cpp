// Peak probes of AMX: four accumulator tiles in registers, non-zero data (zeros flatter the unit by 13 to 30 %).
#include <cstring>

#include "backend/cpu/probe.h"

namespace eitri::probe {
namespace {

struct alignas(64) Bytes64 {
  uint8_t byte[64];
};
struct alignas(64) Tile {
  uint8_t byte[1024];
};

// The full 64 bytes are the operand: with a narrower one the compiler may drop the stores that fill the rest.
void configure() {
  static const Bytes64 config = [] {
    Bytes64 c = {};
    c.byte[0] = 1;  // palette
    for (int t = 0; t < 8; ++t) {
      c.byte[16 + 2 * t] = 64;  // bytes per row
      c.byte[48 + t] = 16;      // rows
    }
    return c;
  }();
  asm volatile("ldtilecfg %0" ::"m"(config));
}

Tile filled(uint16_t pattern) {
  Tile tile;
  for (int i = 0; i < 512; ++i) {
    const uint16_t value = static_cast<uint16_t>(pattern ^ ((i * 2654435761u >> 9) & 0x807f));
    std::memcpy(tile.byte + 2 * i, &value, 2);
  }
  return tile;
}

}  // namespace

double bf16_amx(int64_t rounds) {
  static const Tile a = filled(0x3f00), b = filled(0x3e00);
  configure();
  asm volatile(
      "tileloadd (%0,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm6\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" ::"r"(a.byte),
      "r"(b.byte), "r"(int64_t{64}));
  for (int64_t r = 0; r < rounds; ++r)
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm6, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm4, %tmm2\n\ttdpbf16ps %tmm6, %tmm4, %tmm3");
  asm volatile("tilerelease");
  return 4 * 16384.0 * static_cast<double>(rounds);  // 16 x 16 x 32 products per tile operation
}

double i8_amx(int64_t rounds) {
  static const Tile a = filled(0x1234), b = filled(0x4321);
  configure();
  asm volatile(
      "tileloadd (%0,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm6\n\t"
      "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" ::"r"(a.byte),
      "r"(b.byte), "r"(int64_t{64}));
  for (int64_t r = 0; r < rounds; ++r)
    asm volatile(
        "tdpbssd %tmm6, %tmm4, %tmm0\n\ttdpbssd %tmm6, %tmm4, %tmm1\n\t"
        "tdpbssd %tmm6, %tmm4, %tmm2\n\ttdpbssd %tmm6, %tmm4, %tmm3");
  asm volatile("tilerelease");
  return 4 * 32768.0 * static_cast<double>(rounds);
}

}  // namespace eitri::probe
