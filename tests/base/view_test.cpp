#include "base/view.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "base/numeric.h"

namespace eitri {
namespace {

alignas(16) std::array<unsigned char, 4096> memory;

View strided(DType dtype, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> stride) {
  View view(memory.data(), dtype, shape);
  int i = 0;
  for (int64_t step : stride) view.stride[i++] = step;
  return view;
}

/// The message of the refusal, "" when there was none.
template <class F> std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "";
}
std::string refusal(const View& view, int rank) {
  return refusal([&] { check_view(view, "gemm", "a", rank); });
}
std::string output_refusal(const View& view, int rank) {
  return refusal([&] { check_output(view, "gemm", "d", rank); });
}

TEST(DTypeFacts, AgreeWithEachOther) {
  std::set<std::string_view> names;
  for (DType dtype : all_dtypes()) {
    EXPECT_NE(dtype, DType::none);
    EXPECT_TRUE(names.insert(to_string(dtype)).second);
    EXPECT_EQ(dtype_from(to_string(dtype)), dtype);
    EXPECT_GT(bits(dtype), 0);
    EXPECT_EQ(is_packed(dtype), bits(dtype) < 8);
    EXPECT_EQ(bytes_for(dtype, 0), 0);
    EXPECT_EQ(bytes_for(dtype, 3), (3 * bits(dtype) + 7) / 8);
    EXPECT_GT(max_finite(dtype), 0);
    if (!is_float(dtype)) continue;
    // Largest value and spacing of 1, found by the codec: what is stored there comes back.
    unsigned char element[8] = {};
    store_at(element, dtype, 0, max_finite(dtype));
    EXPECT_EQ(load_at(element, dtype, 0), max_finite(dtype)) << to_string(dtype);
    store_at(element, dtype, 0, 1 + epsilon(dtype));
    EXPECT_EQ(load_at(element, dtype, 0), 1 + epsilon(dtype)) << to_string(dtype);
    store_at(element, dtype, 0, 1 + epsilon(dtype) / 4);
    EXPECT_EQ(load_at(element, dtype, 0), 1) << to_string(dtype);
  }
  EXPECT_EQ(names.size(), 13u);
  EXPECT_EQ(dtype_from("none"), DType::none);
  EXPECT_FALSE(dtype_from("float32"));
  EXPECT_FALSE(dtype_from(""));
  EXPECT_EQ(bits(DType::none), 0);
  EXPECT_EQ(to_string(static_cast<DType>(200)), "unknown dtype");
}

TEST(Str, JoinsValues) {
  EXPECT_EQ(str("m=", 3, ' ', int64_t{-4}, ' ', 7u, ' ', true, ' ', 0.1f, ' ', 0.1, ' ', 'x'), "m=3 -4 7 true 0.1 0.1 x");
  EXPECT_EQ(str(std::string("a"), std::string_view("b"), int8_t{-5}, uint8_t{5}), "ab-55");
  EXPECT_EQ(str(std::numeric_limits<int64_t>::min(), " ", std::numeric_limits<uint64_t>::max()),
            "-9223372036854775808 18446744073709551615");
  EXPECT_EQ(str(std::nan(""), " ", -std::numeric_limits<double>::max()), "nan -1.7976931348623157e+308");
  EXPECT_EQ(str(DType::f8e4m3, " ", Code::io_error), "f8e4m3 io_error");
}

TEST(Str, DescribesViews) {
  EXPECT_EQ(str(View{}), "none");
  EXPECT_EQ(str(View(nullptr, DType::bf16, {128, 4096})), "bf16[128, 4096]");
  EXPECT_EQ(str(View(nullptr, DType::f32, {})), "f32[]");
  EXPECT_EQ(str(strided(DType::bf16, {2, 3}, {8, 1})), "bf16[2, 3] strides [8, 1]");
  EXPECT_EQ(str(strided(DType::bf16, {1, 3}, {77, 1})), "bf16[1, 3]") << "one row has no stride";
  EXPECT_EQ(str(strided(DType::bf16, {0, 3}, {77, 5})), "bf16[0, 3]");
  View packed(nullptr, DType::i8, {64, 64});
  packed.layout = Layout::packed;
  EXPECT_EQ(str(packed), "i8[64, 64] packed");
  View broken(nullptr, DType::f32, {1});
  broken.rank = 100;
  EXPECT_EQ(str(broken), "f32[rank 100]");
  broken.rank = -1;
  EXPECT_EQ(str(broken), "f32[rank -1]");
}

TEST(CheckView, AcceptsWhatIsLegal) {
  EXPECT_EQ(refusal(strided(DType::bf16, {4, 8}, {8, 1}), 2), "");
  EXPECT_EQ(refusal(strided(DType::bf16, {4, 8}, {0, 0}), 2), "") << "broadcast input";
  EXPECT_EQ(refusal(strided(DType::bf16, {8, 4}, {1, 8}), 2), "") << "transposed";
  EXPECT_EQ(refusal(View(nullptr, DType::bf16, {0, 8}), 2), "") << "empty, no data";
  EXPECT_EQ(refusal(View(memory.data(), DType::f32, {}), 0), "");
  EXPECT_EQ(refusal(strided(DType::f4e2m1, {4, 7}, {8, 1}), 2), "") << "padded rows";
  EXPECT_EQ(refusal(strided(DType::i4, {1, 7}, {7, 1}), 2), "") << "one row has no stride";
  EXPECT_EQ(refusal(View(memory.data() + 1, DType::u8, {5}), 1), "");
}

TEST(CheckView, NamesWhatItRefuses) {
  EXPECT_EQ(refusal(View(memory.data(), DType::bf16, {3}), 2), "gemm: a is bf16[3]; expected rank 2");
  EXPECT_EQ(refusal(View{}, 2), "gemm: a is none; expected a tensor of rank 2");
  EXPECT_EQ(refusal(View(memory.data(), DType::bf16, {-1, 3}), 2), "gemm: a is bf16[-1, 3]; expected extents >= 0 (dimension 0)");
  EXPECT_EQ(refusal(View(nullptr, DType::bf16, {2, 3}), 2),
            "gemm: a is bf16[2, 3]; expected data that is not null (the tensor has elements)");
  EXPECT_EQ(refusal(View(memory.data() + 2, DType::f32, {2}), 1), "gemm: a is f32[2]; expected data aligned to 4 bytes");
  EXPECT_EQ(refusal(strided(DType::bf16, {2, 3}, {-3, 1}), 2),
            "gemm: a is bf16[2, 3] strides [-3, 1]; expected strides >= 0 (dimension 0)");
  EXPECT_EQ(refusal(strided(DType::f4e2m1, {2, 4}, {8, 2}), 2),
            "gemm: a is f4e2m1[2, 4] strides [8, 2]; expected inner stride 1 (two elements share "
            "a byte)");
  EXPECT_EQ(refusal(View(memory.data(), DType::f4e2m1, {2, 3}), 2),
            "gemm: a is f4e2m1[2, 3]; expected even outer strides (two elements share a byte; "
            "dimension 0)");
  View unknown(memory.data(), static_cast<DType>(99), {2});
  EXPECT_NE(refusal(unknown, 1).find("expected a dtype that eitri knows, not number 99"), std::string::npos);
  View layout(memory.data(), DType::f32, {2});
  layout.layout = static_cast<Layout>(9);
  EXPECT_NE(refusal(layout, 1).find("layout"), std::string::npos);
  View rank = layout;
  rank.rank = 127;
  EXPECT_EQ(refusal(rank, 1), "gemm: a is f32[rank 127]; expected rank 1");
}

TEST(CheckView, RefusesSpansThatOverflow) {
  constexpr int64_t kBig = int64_t{1} << 62;
  const auto too_big = [](const View& view) { return refusal(view, view.rank).find("2^62 bytes") != std::string::npos; };
  EXPECT_FALSE(too_big(strided(DType::u8, {kBig}, {1})));
  EXPECT_TRUE(too_big(strided(DType::u8, {kBig + 1}, {1})));
  EXPECT_FALSE(too_big(strided(DType::f32, {kBig / 4}, {1})));
  EXPECT_TRUE(too_big(strided(DType::f32, {kBig / 4 + 1}, {1})));
  EXPECT_TRUE(too_big(strided(DType::u8, {1 << 20, 1 << 20}, {kBig, 1})));
  EXPECT_TRUE(too_big(strided(DType::u8, {2, 2}, {INT64_MAX, INT64_MAX})));
  EXPECT_TRUE(too_big(strided(DType::i64, {INT64_MAX, 2}, {1, 1})));
  EXPECT_FALSE(too_big(strided(DType::u8, {INT64_MAX, 0}, {INT64_MAX, 1}))) << "empty";
  // Contiguous views whose outer strides wrapped are caught by their inner extents.
  EXPECT_TRUE(too_big(View(memory.data(), DType::u8, {2, int64_t{1} << 32, int64_t{1} << 32})));
  EXPECT_TRUE(too_big(View(memory.data(), DType::u8, {2, 3, INT64_MAX})));
  View packed(memory.data(), DType::i8, {1, 1});
  packed.layout = Layout::packed;
  packed.shape[0] = packed.shape[1] = int64_t{1} << 33;
  EXPECT_TRUE(too_big(packed));
}

TEST(CheckOutput, RefusesSharedElements) {
  EXPECT_EQ(output_refusal(strided(DType::bf16, {4, 8}, {8, 1}), 2), "");
  EXPECT_EQ(output_refusal(strided(DType::bf16, {8, 4}, {1, 8}), 2), "");
  EXPECT_EQ(output_refusal(strided(DType::bf16, {4, 8}, {9, 1}), 2), "");
  EXPECT_EQ(output_refusal(strided(DType::bf16, {1, 8}, {0, 1}), 2), "") << "a single row";
  EXPECT_EQ(output_refusal(strided(DType::bf16, {2, 3, 4}, {4, 8, 1}), 3), "") << "permuted";
  EXPECT_EQ(output_refusal(View(nullptr, DType::bf16, {0, 3}), 2), "");
  EXPECT_EQ(output_refusal(strided(DType::bf16, {4, 8}, {7, 1}), 2),
            "gemm: d is bf16[4, 8] strides [7, 1]; expected strides that keep elements apart (it is "
            "written; dimension 0)");
  EXPECT_NE(output_refusal(strided(DType::bf16, {4, 8}, {0, 1}), 2), "");
  EXPECT_NE(output_refusal(strided(DType::bf16, {4, 8}, {8, 0}), 2), "");
  EXPECT_NE(output_refusal(strided(DType::bf16, {4, 4}, {1, 1}), 2), "");
  EXPECT_NE(output_refusal(strided(DType::bf16, {2, 3, 4}, {4, 4, 1}), 3), "");
  EXPECT_EQ(output_refusal(View(memory.data(), DType::bf16, {3}), 2), "gemm: d is bf16[3]; expected rank 2") << "check_view comes first";
}

TEST(ViewQuestions, Contiguity) {
  EXPECT_TRUE(is_contiguous(View(nullptr, DType::f32, {2, 3, 4})));
  EXPECT_TRUE(is_contiguous(strided(DType::f32, {1, 3}, {99, 1})));
  EXPECT_TRUE(is_contiguous(strided(DType::f32, {3, 1}, {1, 99})));
  EXPECT_TRUE(is_contiguous(strided(DType::f32, {0, 3}, {9, 9})));
  EXPECT_FALSE(is_contiguous(strided(DType::f32, {2, 3}, {4, 1})));
  EXPECT_FALSE(is_contiguous(strided(DType::f32, {2, 3}, {1, 2})));
  EXPECT_TRUE(has_unit_inner_stride(strided(DType::f32, {2, 3}, {4, 1})));
  EXPECT_TRUE(has_unit_inner_stride(strided(DType::f32, {2, 1}, {4, 7})));
  EXPECT_FALSE(has_unit_inner_stride(strided(DType::f32, {2, 3}, {1, 2})));
}

TEST(ViewQuestions, SpansRowsAndSlices) {
  EXPECT_EQ(span_bytes(strided(DType::f32, {2, 3}, {10, 1})), 13 * 4);
  EXPECT_EQ(span_bytes(strided(DType::f4e2m1, {2, 3}, {4, 1})), 4) << "7 nibbles";
  EXPECT_EQ(span_bytes(strided(DType::f32, {2, 0}, {10, 1})), 0);
  EXPECT_EQ(span_bytes(strided(DType::f32, {5, 3}, {0, 1})), 12);
  EXPECT_EQ(span_bytes(View{}), 0);
  const View view = strided(DType::bf16, {4, 3, 2}, {100, 2, 1});
  EXPECT_EQ(row(view, 2), memory.data() + 400);
  EXPECT_EQ(row(strided(DType::i4, {4, 6}, {6, 1}), 3), memory.data() + 9);
  const View inner = slice(view, 1);
  EXPECT_EQ(str(inner), "bf16[3, 2]");
  EXPECT_EQ(inner.data, memory.data() + 200);
  const View middle = rows(view, 1, 3);
  EXPECT_EQ(middle.shape[0], 2);
  EXPECT_EQ(middle.stride[0], 100);
  EXPECT_EQ(middle.data, memory.data() + 200);

  const View first(memory.data(), DType::u8, {16}), second(memory.data() + 15, DType::u8, {4});
  const View third(memory.data() + 16, DType::u8, {4}), empty(memory.data() + 3, DType::u8, {0});
  EXPECT_TRUE(overlap(first, second));
  EXPECT_TRUE(overlap(second, first));
  EXPECT_FALSE(overlap(first, third));
  EXPECT_FALSE(overlap(first, empty));
}

TEST(ViewElements, StoreThenLoad) {
  for (DType dtype : all_dtypes()) {
    memory.fill(0);
    const View view = strided(dtype, {2, 3}, {8, 1});
    const double values[6] = {1, 2, 4, 4, 2, 1};  // exact in every dtype
    for (int i = 0; i < 6; ++i) store(view, {i / 3, i % 3}, values[i]);
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(load(view, {i / 3, i % 3}), values[i]) << to_string(dtype) << " element " << i;
    }
    const int64_t used = bytes_for(dtype, 3), next = bytes_for(dtype, 8);
    for (int64_t i = used; i < next; ++i) EXPECT_EQ(memory[static_cast<size_t>(i)], 0);
    if (is_packed(dtype)) {
      EXPECT_EQ(memory[1] >> 4, 0) << "the neighbouring nibble is untouched";
    }
  }
}

TEST(ViewElements, OneRoundingFromDouble) {
  // 1 + 2^-8 is half way between two bf16; a little more must round up, although that little is
  // lost in fp32, and a little less must round down.
  uint16_t code = 0;
  store_at(&code, DType::bf16, 0, 1 + 0x1p-8 + 0x1p-40);
  EXPECT_EQ(decode_bf16(code), 1 + 0x1p-7f);
  store_at(&code, DType::bf16, 0, 1 + 0x3p-8 - 0x1p-40);
  EXPECT_EQ(decode_bf16(code), 1 + 0x1p-7f);
  store_at(&code, DType::bf16, 0, 1 + 0x1p-8);
  EXPECT_EQ(decode_bf16(code), 1.0f);
  store_at(&code, DType::f16, 0, -(2 + 0x1p-10 + 0x1p-50));
  EXPECT_EQ(decode_f16(code), -(2 + 0x1p-9f));
  store_at(&code, DType::f16, 0, 0x1p-25 + 0x1p-70);
  EXPECT_EQ(code, 1) << "just above half of the smallest subnormal";
  store_at(&code, DType::bf16, 0, 1e300);
  EXPECT_EQ(code, 0x7f80);
  store_at(&code, DType::f16, 0, -1e-300);
  EXPECT_EQ(code, 0x8000);
  store_at(&code, DType::f8e4m3, 0, std::nan(""));
  EXPECT_EQ(code & 0xff, 0x7f);
  int8_t i8 = 0;
  store_at(&i8, DType::i8, 0, 2.5 + 1e-12);
  EXPECT_EQ(i8, 3);
  store_at(&i8, DType::i8, 0, -1000);
  EXPECT_EQ(i8, -127);
}

TEST(ViewElements, IntegersClamp) {
  const struct {
    DType dtype;
    double value, want;
  } cases[] = {
      {DType::u8, -3, 0},
      {DType::u8, 300, 255},
      {DType::u8, 2.5, 2},
      {DType::i32, 1e12, 2147483647},
      {DType::i32, -1e12, -2147483648.0},
      {DType::i64, 1e30, 0x1p63},
      {DType::i64, -1e30, -0x1p63},
      {DType::i64, -7, -7},
      {DType::i32, std::nan(""), 0},
  };
  for (const auto& c : cases) {
    alignas(8) unsigned char element[8] = {};
    store_at(element, c.dtype, 0, c.value);
    EXPECT_EQ(load_at(element, c.dtype, 0), c.want) << to_string(c.dtype) << " of " << c.value;
  }
  EXPECT_THROW(load_at(memory.data(), DType::none, 0), Error);
  EXPECT_THROW(store_at(memory.data(), DType::none, 0, 1), Error);
}

}  // namespace
}  // namespace eitri
