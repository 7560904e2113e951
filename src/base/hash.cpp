#include "base/hash.h"

namespace eitri {

namespace {

/// Little-endian on every machine; compiles to one load where that is the native order.
uint64_t read_word(const unsigned char* bytes, size_t count) {
  uint64_t word = 0;
  for (size_t i = 0; i < count; ++i) word |= uint64_t{bytes[i]} << (8 * i);
  return word;
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t size, uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  uint64_t hash = hash_mix(seed, size);  // the length keeps "a" and "a\0" apart
  size_t done = 0;
  for (; size - done >= 8; done += 8) hash = hash_mix(hash, read_word(bytes + done, 8));
  if (done < size) hash = hash_mix(hash, read_word(bytes + done, size - done));
  return hash;
}

}  // namespace eitri
