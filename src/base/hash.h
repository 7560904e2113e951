// 64-bit hashes for tables in memory: route caches, problem keys. Fast and well mixed, but neither
// secret nor collision-proof against an adversary: compare the key after a hit, and never identify
// a file or an artefact by them (the jit has its own content hash).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eitri {

/// A bijection in which every input bit flips each output bit with probability close to 1/2.
constexpr uint64_t mix(uint64_t value) {
  value ^= value >> 32;
  value *= 0xe9846af9b1a615dULL;
  value ^= value >> 32;
  value *= 0xe9846af9b1a615dULL;
  value ^= value >> 28;
  return value;
}

/// Adds a value to a running hash; the order matters.
constexpr uint64_t hash_mix(uint64_t seed, uint64_t value) {
  return mix(seed * 0x9e3779b97f4a7c15ULL + mix(value + 0x632be59bd9b4e019ULL));
}

/// The same bytes give the same hash in every process and on every machine.
uint64_t hash_bytes(const void* data, size_t size, uint64_t seed = 0);
inline uint64_t hash_bytes(std::string_view text, uint64_t seed = 0) { return hash_bytes(text.data(), text.size(), seed); }

}  // namespace eitri
