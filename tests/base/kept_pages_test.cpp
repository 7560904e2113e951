// Large buffers that leave their pages to the next ones.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "backend/cpu/kept_pages.h"
#include "backend/cpu/memory.h"

namespace eitri {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct KeptPages : testing::Test {
  ~KeptPages() override { keep_pages(0); }
};

bool is_zero(const Buffer& buffer) {
  for (size_t i = 0; i < buffer.size(); ++i)
    if (buffer.data()[i] != std::byte{0}) return false;
  return true;
}

TEST_F(KeptPages, the_next_buffer_takes_them_and_finds_zeros) {
  keep_pages(64 * kMiB);
  std::byte* place = nullptr;
  {
    const Buffer first(9 * kMiB);
    place = first.data();
    std::memset(place, 7, first.size());
  }
  const Buffer large(40 * kMiB), small(kMiB), second(8 * kMiB + 5);
  EXPECT_EQ(second.data(), place);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data()) % (2 * kMiB), 0u);
  EXPECT_EQ(second.size(), 8 * kMiB + 5);
  EXPECT_TRUE(is_zero(second));
  const Buffer third(9 * kMiB);
  EXPECT_NE(third.data(), place) << "they are taken";
}

TEST_F(KeptPages, a_small_buffer_does_not_hold_many_pages) {
  keep_pages(64 * kMiB);
  std::byte* place = nullptr;
  {
    const Buffer first(40 * kMiB);
    place = first.data();
  }
  const Buffer second(4 * kMiB);
  EXPECT_NE(second.data(), place);
}

TEST_F(KeptPages, what_is_moved_keeps_its_pages) {
  keep_pages(64 * kMiB);
  Buffer first(4 * kMiB);
  std::byte* const place = first.data();
  Buffer moved = std::move(first);
  moved = Buffer();  // ends it
  const Buffer second(4 * kMiB);
  EXPECT_EQ(second.data(), place);
}

TEST_F(KeptPages, beyond_the_limit_they_go_back) {
  keep_pages(8 * kMiB);
  { const Buffer a(6 * kMiB), b(6 * kMiB); }
  keep_pages(7 * kMiB);  // one is kept
  std::vector<Buffer> some;
  for (int i = 0; i < 3; ++i) {
    some.emplace_back(6 * kMiB);
    std::memset(some.back().data(), i, some.back().size());
  }
  std::set<std::byte*> places;
  for (const Buffer& b : some) places.insert(b.data());
  EXPECT_EQ(places.size(), 3u);
  some.clear();
  keep_pages(0);
  EXPECT_TRUE(is_zero(Buffer(6 * kMiB)));
}

}  // namespace
}  // namespace eitri
