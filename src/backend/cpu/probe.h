// Probes behind the machine profile: each runs a register-resident loop of its instruction and returns the operations
// done (multiply and add counted separately); the caller takes the time. Plain functions, compiled per ISA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eitri::probe {

double fma_portable(int64_t rounds);
double fma_avx2(int64_t rounds);
double fma_avx512(int64_t rounds);
double i8_avx2(int64_t rounds);
double i8_avx512(int64_t rounds);  // VNNI
double bf16_avx512bf16(int64_t rounds);
double bf16_amx(int64_t rounds);
double i8_amx(int64_t rounds);

/// Reads `bytes` (a multiple of 512) once with prefetching; the sum keeps the loads alive.
uint64_t read_portable(const std::byte* data, size_t bytes);
uint64_t read_avx512(const std::byte* data, size_t bytes);

}  // namespace eitri::probe
