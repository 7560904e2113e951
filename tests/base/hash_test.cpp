#include "base/hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace eitri {
namespace {

static_assert(hash_mix(1, 2) != hash_mix(2, 1), "usable at compile time, order matters");
static_assert(mix(1) != mix(2));

/// Flipping one input bit should flip each of the 64 output bits half of the time.
template <class F> void expect_avalanche(F&& hash) {
  constexpr int kSamples = 2000;
  for (int bit = 0; bit < 64; ++bit) {
    std::vector<int> flips(64, 0);
    for (uint64_t sample = 0; sample < kSamples; ++sample) {
      // Small integers on purpose: that is what problem fields are.
      uint64_t change = hash(sample) ^ hash(sample ^ (uint64_t{1} << bit));
      for (; change != 0; change &= change - 1) ++flips[static_cast<size_t>(std::countr_zero(change))];
    }
    for (int count : flips) {
      ASSERT_GT(count, kSamples * 0.42) << "input bit " << bit;
      ASSERT_LT(count, kSamples * 0.58) << "input bit " << bit;
    }
  }
}

TEST(Hash, MixesEveryBit) {
  expect_avalanche([](uint64_t x) { return hash_mix(0, x); });
  expect_avalanche([](uint64_t x) { return hash_mix(x, 4096); });
}

TEST(Hash, ProblemLikeKeysDoNotCollide) {
  std::unordered_set<uint64_t> seen;
  std::unordered_set<uint32_t> low, high;  // a table uses a part of the bits
  size_t count = 0;
  for (uint64_t m = 0; m < 64; ++m) {
    for (uint64_t n = 0; n < 64; ++n) {
      for (uint64_t k = 0; k < 64; ++k, ++count) {
        const uint64_t hash = hash_mix(hash_mix(hash_mix(7, m), n * 128), k * 128);
        seen.insert(hash);
        low.insert(static_cast<uint32_t>(hash));
        high.insert(static_cast<uint32_t>(hash >> 32));
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
  // 2^18 keys in 2^32 slots: 8 collisions are expected, 40 would be a bad mix.
  EXPECT_GT(low.size(), count - 40);
  EXPECT_GT(high.size(), count - 40);
}

TEST(Hash, BytesDependOnContentLengthAndSeedOnly) {
  std::unordered_set<uint64_t> seen;
  std::string text;
  for (int length = 0; length < 64; ++length, text += '\0') {
    EXPECT_TRUE(seen.insert(hash_bytes(text)).second) << "zeros of length " << length;
  }
  text.assign(64, 'a');
  for (char& c : text) {
    c ^= 1;
    EXPECT_TRUE(seen.insert(hash_bytes(text)).second);
    c ^= 1;
  }
  const std::string shifted = "x" + text;
  EXPECT_EQ(hash_bytes(shifted.data() + 1, text.size()), hash_bytes(text)) << "any alignment";
  EXPECT_NE(hash_bytes(text, 1), hash_bytes(text, 2));
}

TEST(Hash, StaysTheSame) {
  // Written to disk by nobody, yet logs and tests of two builds should agree.
  EXPECT_EQ(hash_bytes("m=1,n=4096,k=4096"), hash_bytes(std::string("m=1,n=4096,k=4096")));
  EXPECT_EQ(hash_mix(0, 0), 0x38cab5117514d9c9u);
  EXPECT_EQ(hash_bytes("eitri"), 0xca727644ab515934u);
}

}  // namespace
}  // namespace eitri
