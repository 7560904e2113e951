#include "jit/sha256.h"

#include <gtest/gtest.h>

namespace eitri::jit {
namespace {

// FIPS 180-4 and NIST's example messages.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Every length around the padding's edges, in every split.
TEST(Sha256, PiecesGiveTheSame) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 37 + 11);
  for (size_t size : {0u, 1u, 55u, 56u, 57u, 63u, 64u, 65u, 119u, 120u, 127u, 128u, 129u, 200u}) {
    const std::string_view all = std::string_view(text).substr(0, size);
    for (size_t cut = 0; cut <= size; ++cut) {
      Sha256 hash;
      hash.update(all.substr(0, cut));
      hash.update(all.substr(cut));
      ASSERT_EQ(hash.hex(), sha256(all)) << size << " " << cut;
    }
  }
}

TEST(Sha256, FieldsDoNotRunTogether) {
  Sha256 a, b;
  a.update_field("ab");
  a.update_field("c");
  b.update_field("a");
  b.update_field("bc");
  EXPECT_NE(a.hex(), b.hex());
}

}  // namespace
}  // namespace eitri::jit
