// The C ABI: codes, messages, struct sizes, packed weights, and the same results as the C++ face.
#include "eitri/eitri.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "backend/cpu/memory.h"
#include "base/numeric.h"
#include "eitri/eitri.hpp"

namespace {

/// A tensor with storage for its shape; row-major.
struct Tensor {
  std::vector<int64_t> shape;
  eitri_tensor t;
  Tensor(void* data, eitri_dtype dtype, std::vector<int64_t> extents)
      : shape(std::move(extents)), t{data, {1, 0}, static_cast<int32_t>(shape.size()), dtype, shape.data(), nullptr, 0} {}
  Tensor(const Tensor&) = delete;
  const eitri_tensor* operator&() const { return &t; }
};
constexpr eitri_dtype kF32{2, 32, 1}, kBf16{4, 16, 1}, kI32{0, 32, 1}, kU8{1, 8, 1}, kF8{10, 8, 1};

struct CAbi : testing::Test {
  std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 0, 0, 1, 1}, c = std::vector<float>(4, NAN);
  Tensor ta{a.data(), kF32, {2, 3}}, tb{b.data(), kF32, {2, 3}}, tc{c.data(), kF32, {2, 2}};
  eitri_gemm_args args{};
  CAbi() {
    args.size = sizeof args;
    args.a = &ta;
    args.b = &tb;
    args.c = &tc;
  }
};

TEST_F(CAbi, gemm_computes_and_clears_the_last_error) {
  EXPECT_EQ(eitri_gemm(nullptr, nullptr), EITRI_INVALID_ARGUMENT);
  EXPECT_STRNE(eitri_last_error(), "");
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c, (std::vector<float>{1, 5, 4, 11}));
  EXPECT_STREQ(eitri_last_error(), "");
}

TEST_F(CAbi, gemm_takes_f8_with_scales) {
  std::vector<uint8_t> x, w;
  for (const float v : a) x.push_back(eitri::encode_f8e4m3(v));
  for (const float v : b) w.push_back(eitri::encode_f8e4m3(v));
  std::vector<float> x_scale = {1, 10}, w_scale = {2};
  Tensor tx(x.data(), kF8, {2, 3}), tw(w.data(), kF8, {2, 3}), sx(x_scale.data(), kF32, {2}), sw(w_scale.data(), kF32, {1});
  args.a = &tx;
  args.b = &tw;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(eitri_last_error()).find("a_scale is none; expected f32 (a is f8e4m3)"), std::string::npos) << eitri_last_error();
  args.a_scale = &sx;
  args.b_scale = &sw;
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c, (std::vector<float>{2, 10, 80, 220}));
}

TEST(CAbiQuantize, codes_of_tokens_and_of_blocks) {
  std::vector<float> x = {7, 0.5f, -3, 0}, token_scale(1);
  std::vector<uint8_t> codes(4), block_scale(1);
  Tensor tx(x.data(), kF32, {1, 4}), i8(codes.data(), {0, 8, 1}, {1, 4}), f4(codes.data(), {17, 4, 1}, {1, 4}),
      st(token_scale.data(), kF32, {1}), sb(block_scale.data(), {14, 8, 1}, {1, 1});
  eitri_quantize_args args{};
  args.size = offsetof(eitri_quantize_args, quant);  // a caller of before the field was there
  args.x = &tx, args.q = &i8, args.scale = &st;
  ASSERT_EQ(eitri_quantize(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(codes, (std::vector<uint8_t>{127, 9, 202, 0}));
  EXPECT_EQ(token_scale[0], 7 / 127.0f);
  args.size = sizeof args;
  args.q = &f4, args.scale = &sb, args.quant = EITRI_QUANT_PER_1X32;
  for (const int rounding : {0, 1, 2}) {  // up: scale 2; down: scale 1, 7 saturates at 6; even: 7 counts as 8, scale 2
    args.scale_rounding = rounding;
    ASSERT_EQ(eitri_quantize(&args, nullptr), EITRI_OK) << eitri_last_error();
    EXPECT_EQ(block_scale[0], rounding == 1 ? 127 : 128);
    EXPECT_EQ(codes[0], rounding == 1 ? 0x17 : 0x06) << "the first two codes";
    EXPECT_EQ(codes[1], rounding == 1 ? 0x0d : 0x0b);
  }
  args.scale_rounding = 3;
  EXPECT_EQ(eitri_quantize(&args, nullptr), EITRI_INVALID_ARGUMENT);
  EXPECT_STREQ(eitri_last_error(), "quantize: scale_rounding is number 3; expected 0 (up), 1 (down) or 2 (even)");
}

TEST_F(CAbi, errors_name_argument_got_and_wanted) {
  Tensor wrong(b.data(), kF32, {3, 2});
  args.b = &wrong;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  const std::string text = eitri_last_error();
  EXPECT_NE(text.find("gemm: b is f32[3, 2]; expected"), std::string::npos) << text;
}

TEST_F(CAbi, errors_belong_to_their_thread) {
  EXPECT_EQ(eitri_gemm(nullptr, nullptr), EITRI_INVALID_ARGUMENT);
  std::thread([] { EXPECT_STREQ(eitri_last_error(), ""); }).join();
  EXPECT_STRNE(eitri_last_error(), "");
}

TEST_F(CAbi, a_stream_is_refused_on_the_cpu) {
  int dummy = 0;
  EXPECT_EQ(eitri_gemm(&args, &dummy), EITRI_INVALID_ARGUMENT);
}

TEST_F(CAbi, enums_out_of_range_are_refused) {
  args.gate = 3;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  args.gate = 0;
  args.activation.kind = -1;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
}

TEST_F(CAbi, a_shorter_struct_of_an_older_caller_works) {
  args.size = offsetof(eitri_gemm_args, bias);
  args.bias = &ta;  // beyond the caller's struct: must not be looked at
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c[3], 11);
}

TEST_F(CAbi, a_longer_struct_works_while_the_unknown_part_is_zero) {
  struct Newer {
    eitri_gemm_args known;
    int64_t future;
  } newer{args, 0};
  newer.known.size = sizeof newer;
  EXPECT_EQ(eitri_gemm(&newer.known, nullptr), EITRI_OK) << eitri_last_error();
  newer.future = 1;
  EXPECT_EQ(eitri_gemm(&newer.known, nullptr), EITRI_INVALID_ARGUMENT);
  newer.known.size = 3;
  EXPECT_EQ(eitri_gemm(&newer.known, nullptr), EITRI_INVALID_ARGUMENT);
}

TEST_F(CAbi, tensors_elsewhere_or_of_unknown_dtype_are_refused) {
  ta.t.device = {2, 0};
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  ta.t.device = {1, 0};
  ta.t.dtype = {2, 64, 1};
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  ta.t.dtype = kF32;
  ta.t.ndim = 7;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  ta.t.ndim = 2;
  ta.t.shape = nullptr;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
}

TEST_F(CAbi, byte_offset_and_strides_are_honoured) {
  std::vector<float> wide = {-1, 1, 2, 3, -1, 4, 5, 6};  // rows of 4, the matrix starts at element 1
  Tensor view(wide.data(), kF32, {2, 3});
  int64_t strides[] = {4, 1};
  view.t.strides = strides;
  view.t.byte_offset = 4;
  args.a = &view;
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c, (std::vector<float>{1, 5, 4, 11}));
}

TEST_F(CAbi, packed_weights_travel_as_bytes) {
  size_t bytes = 0;
  ASSERT_EQ(eitri_packed_bytes(&tb, EITRI_GATE_NONE, &bytes), EITRI_OK) << eitri_last_error();
  eitri::Buffer buffer(bytes);
  EXPECT_EQ(eitri_pack_weights(&tb, EITRI_GATE_NONE, buffer.data(), bytes - 1), EITRI_INVALID_ARGUMENT);
  ASSERT_EQ(eitri_pack_weights(&tb, EITRI_GATE_NONE, buffer.data(), bytes), EITRI_OK) << eitri_last_error();
  Tensor packed(buffer.data(), kU8, {static_cast<int64_t>(bytes)});
  args.b = &packed;
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c, (std::vector<float>{1, 5, 4, 11}));
  buffer.data()[3] = std::byte{0};  // in the magic
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(eitri_last_error()).find("gemm: b"), std::string::npos) << eitri_last_error();
}

TEST_F(CAbi, weights_of_four_bits_travel_packed_with_their_scales) {
  std::vector<uint8_t> codes = {eitri::pack_nibbles(eitri::encode_i4(1), 0), 0, eitri::pack_nibbles(0, eitri::encode_i4(-3)),
                                eitri::pack_nibbles(eitri::encode_i4(7), 0)};  // rows (1, 0, 0), (0, -3, 7), each of two bytes
  std::vector<float> scale = {2, 0.5f};
  Tensor w(codes.data(), {0, 4, 1}, {2, 3}), s(scale.data(), kF32, {2, 1});
  int64_t strides[] = {4, 1};
  w.t.strides = strides;
  args.b = &w;
  args.b_scale = &s;
  args.b_quant = EITRI_QUANT_PER_1X32;
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c, (std::vector<float>{2, 7.5f, 8, 13.5f}));

  size_t bytes = 0;
  ASSERT_EQ(eitri_packed_bytes_scaled(&w, &s, EITRI_QUANT_PER_1X32, EITRI_GATE_NONE, &bytes), EITRI_OK) << eitri_last_error();
  eitri::Buffer buffer(bytes);
  EXPECT_EQ(eitri_pack_weights_scaled(&w, &s, 99, EITRI_GATE_NONE, buffer.data(), bytes), EITRI_INVALID_ARGUMENT);
  EXPECT_EQ(eitri_pack_weights_scaled(&w, &s, EITRI_QUANT_PER_1X32, EITRI_GATE_NONE, buffer.data(), bytes - 1), EITRI_INVALID_ARGUMENT);
  ASSERT_EQ(eitri_pack_weights_scaled(&w, &s, EITRI_QUANT_PER_1X32, EITRI_GATE_NONE, buffer.data(), bytes), EITRI_OK) << eitri_last_error();
  Tensor packed(buffer.data(), kU8, {static_cast<int64_t>(bytes)});
  args.b = &packed;
  args.b_scale = nullptr;
  std::fill(c.begin(), c.end(), NAN);
  ASSERT_EQ(eitri_gemm(&args, nullptr), EITRI_OK) << eitri_last_error();
  EXPECT_EQ(c, (std::vector<float>{2, 7.5f, 8, 13.5f}));
  args.b_quant = 7;
  EXPECT_EQ(eitri_gemm(&args, nullptr), EITRI_INVALID_ARGUMENT);
}

TEST(CAbiMoe, a_layer_gives_the_bits_of_the_cpp_face) {
  constexpr int64_t kTokens = 3, kHidden = 32, kInter = 16, kExperts = 4, kTopK = 2;
  const auto values = [](int64_t n, int seed) {
    std::vector<uint16_t> v(static_cast<size_t>(n));
    for (size_t i = 0; i < v.size(); ++i) v[i] = eitri::encode_bf16(static_cast<float>((i * 37 + size_t(seed)) % 17) / 16 - 0.5f);
    return v;
  };
  auto x = values(kTokens * kHidden, 1), w1 = values(kExperts * 2 * kInter * kHidden, 2), w2 = values(kExperts * kHidden * kInter, 3);
  std::vector<float> weights = {.25f, .75f, .5f, .5f, 1, 0};
  std::vector<int32_t> ids = {0, 1, 2, 3, 1, -1};
  std::vector<uint16_t> out(kTokens * kHidden, 0xffff), same = out;
  Tensor tx(x.data(), kBf16, {kTokens, kHidden}), t1(w1.data(), kBf16, {kExperts, 2 * kInter, kHidden}),
      t2(w2.data(), kBf16, {kExperts, kHidden, kInter}), tw(weights.data(), kF32, {kTokens, kTopK}), ti(ids.data(), kI32, {kTokens, kTopK}),
      to(out.data(), kBf16, {kTokens, kHidden});
  eitri_fused_moe_args args{};
  args.size = sizeof args;
  args.x = &tx;
  args.w1 = &t1;
  args.w2 = &t2;
  args.topk_weights = &tw;
  args.topk_ids = &ti;
  args.out = &to;
  args.activation.kind = EITRI_ACT_SILU;
  args.gate = EITRI_GATE_SEPARATED;
  args.weight_stage = EITRI_WEIGHT_SECOND_STAGE;
  ASSERT_EQ(eitri_fused_moe(&args, nullptr), EITRI_OK) << eitri_last_error();
  using eitri::DType;
  eitri::fused_moe({.x = {x.data(), DType::bf16, {kTokens, kHidden}},
                    .w1 = {w1.data(), DType::bf16, {kExperts, 2 * kInter, kHidden}},
                    .w2 = {w2.data(), DType::bf16, {kExperts, kHidden, kInter}},
                    .topk_weights = {weights.data(), DType::f32, {kTokens, kTopK}},
                    .topk_ids = {ids.data(), DType::i32, {kTokens, kTopK}},
                    .out = {same.data(), DType::bf16, {kTokens, kHidden}}});
  EXPECT_EQ(out, same);
}

TEST(CAbiExplain, tells_its_length_and_cuts_cleanly) {
  size_t length = 0;
  ASSERT_EQ(eitri_explain("gemm", "m=1,n=32,k=32", 0, nullptr, 0, &length), EITRI_OK) << eitri_last_error();
  std::vector<char> text(length + 1, 'x');
  ASSERT_EQ(eitri_explain("gemm", "m=1,n=32,k=32", 0, text.data(), text.size(), nullptr), EITRI_OK);
  EXPECT_EQ(std::strlen(text.data()), length);
  char small[8];
  ASSERT_EQ(eitri_explain("gemm", "m=1,n=32,k=32", 1, small, sizeof small, nullptr), EITRI_OK);
  EXPECT_EQ(std::strlen(small), sizeof small - 1);
  EXPECT_EQ(eitri_explain("gem", "", 0, nullptr, 0, &length), EITRI_INVALID_ARGUMENT);
  EXPECT_NE(std::string(eitri_last_error()).find("grouped_gemm"), std::string::npos) << "the known operators are listed";
}

TEST(CAbiExplain, values_of_the_c_enums_are_those_of_the_cpp_ones) {
  EXPECT_EQ(int(EITRI_ACT_SITUV2), int(eitri::ActivationKind::situv2));
  EXPECT_EQ(int(EITRI_ACT_GELU_TANH), int(eitri::ActivationKind::gelu_tanh));
  EXPECT_EQ(int(EITRI_GATE_INTERLEAVED), int(eitri::GateLayout::interleaved));
  EXPECT_EQ(int(EITRI_GATHER_POSITION), int(eitri::Gather::position));
  EXPECT_EQ(int(EITRI_SCORE_SQRT_SOFTPLUS), int(eitri::Score::sqrt_softplus));
  EXPECT_EQ(int(EITRI_WEIGHT_SECOND_STAGE), int(eitri::WeightStage::second));
  EXPECT_EQ(int(EITRI_INTERNAL), int(eitri::Code::internal));
}

}  // namespace
