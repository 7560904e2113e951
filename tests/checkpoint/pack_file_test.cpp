// `eitri pack`: a packed file is mapped and gives the results that its source gives.
#include "checkpoint/pack_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/numeric.h"
#include "base/view.h"
#include "checkpoint/temporary_folder.h"
#include "dispatch/maker.h"

namespace eitri::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kN = 70, kK = 96, kRows = 5;

std::string refusal(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// A file with a bf16 matrix, a stack of gated ones, an fp8 matrix with scales of 128 x 128 blocks, and a vector.
class PackFile : public ::testing::Test {
 protected:
  PackFile() {
    plain = maker.dense("plain", DType::bf16, {kN, kK}, Fill::weight);
    stack = maker.dense("stack", DType::bf16, {2, kN, kK}, Fill::weight);
    codes = maker.dense("codes", DType::f8e4m3, {kN, kK}, Fill::code);
    scale = maker.dense("scale", DType::f32, {1, 1}, Fill::scale);
    norm = maker.dense("norm", DType::f32, {kK}, Fill::normal);
    x = maker.dense("x", DType::bf16, {kRows, kK}, Fill::normal);
    write_safetensors(in,
                      std::vector<TensorToWrite>{tensor("a.weight", plain), tensor("a.gate_up.weight", stack), tensor("b.weight", codes),
                                                 tensor("b.weight_scale_inv", scale), tensor("norm", norm)},
                      {{"format", "pt"}});
  }
  static TensorToWrite tensor(const char* name, const View& view) {
    return {.name = name, .dtype = view.dtype, .shape = {view.shape, view.shape + view.rank}, .data = view.data};
  }
  std::vector<float> product(GemmArgs args) {
    std::vector<float> c(static_cast<size_t>(kRows * kN));
    args.a = x;
    args.c = View(c.data(), DType::f32, {kRows, kN});
    gemm(args);
    return c;
  }
  TemporaryFolder folder;
  const std::string in = folder.file("in.safetensors"), out = folder.file("out.safetensors");
  Maker maker;
  View plain, stack, codes, scale, norm, x;
};

TEST_F(PackFile, a_mapped_weight_gives_the_same_results) {
  const PackSummary summary = pack_file(in, out, {.weights = {"a.*weight"}, .gated = {"*gate_up*"}});
  EXPECT_EQ(summary.packed, 2);
  EXPECT_EQ(summary.copied, 3);
  const SafetensorsFile file = SafetensorsFile::open(out);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const View packed = packed_weight(file.at("a.weight"));
  EXPECT_EQ(packed.shape[0], kN);
  EXPECT_EQ(product({.b = packed}), product({.b = plain}));
  const View gated = packed_weight(file.at("a.gate_up.weight"));
  EXPECT_EQ(gated.rank, 3);
  EXPECT_THAT(refusal([&] { product({.b = packed, .gate = GateLayout::separated}); }), HasSubstr("gate"));
  EXPECT_EQ(std::memcmp(file.at("norm").data, norm.data, kK * 4), 0);
  EXPECT_EQ(file.at("b.weight").dtype, DType::f8e4m3);
}

TEST_F(PackFile, block_scales_move_into_the_buffer) {
  const PackRules rules{.weights = {"b.weight"}, .quant = Quant::per_128x128, .scale_from = "weight", .scale_to = "weight_scale_inv"};
  EXPECT_EQ(pack_file(in, out, rules).packed, 1);
  const SafetensorsFile file = SafetensorsFile::open(out);
  EXPECT_EQ(file.find("b.weight_scale_inv"), nullptr);
  EXPECT_EQ(product({.b = packed_weight(file.at("b.weight"))}), product({.b = codes, .b_scale = scale, .b_quant = Quant::per_128x128}));
}

// As MXFP4 checkpoints have it: bytes of two codes, [.., blocks, 16], and a byte of scale for each block.
TEST_F(PackFile, bytes_of_mxfp4) {
  const View bytes = maker.dense("bytes", DType::u8, {kN, kK / 2}, Fill::code);
  std::vector<uint8_t> scales(kN * kK / 32);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(120 + i % 9);
  const TensorToWrite blocks{.name = "w_blocks", .dtype = DType::u8, .shape = {1, kN, kK / 32, 16}, .data = bytes.data};
  const TensorToWrite exponents{.name = "w_scales", .dtype = DType::u8, .shape = {1, kN, kK / 32}, .data = scales.data()};
  write_safetensors(in, std::vector<TensorToWrite>{blocks, exponents});
  const PackRules rules{
      .weights = {"*_blocks"}, .type = DType::f4e2m1, .quant = Quant::per_1x32, .scale_from = "_blocks", .scale_to = "_scales"};
  pack_file(in, out, rules);
  const SafetensorsFile file = SafetensorsFile::open(out);
  View packed = packed_weight(file.at("w_blocks"));
  EXPECT_EQ(packed.rank, 3);
  std::vector<float> c(kRows * kN), expected(kRows * kN);
  const View a(x.data, DType::bf16, {1, kRows, kK});
  gemm({.a = a, .b = packed, .c = View(c.data(), DType::f32, {1, kRows, kN})});
  gemm({.a = a,
        .b = View(bytes.data, DType::f4e2m1, {1, kN, kK}),
        .c = View(expected.data(), DType::f32, {1, kRows, kN}),
        .b_scale = View(scales.data(), DType::f8e8m0, {1, kN, kK / 32}),
        .b_quant = Quant::per_1x32});
  EXPECT_EQ(c, expected);
}

TEST_F(PackFile, errors_name_the_tensor) {
  EXPECT_THAT(refusal([&] { pack_file(in, out, {}); }), HasSubstr("no globs"));
  EXPECT_THAT(refusal([&] { pack_file(in, out, {.weights = {"c.*"}}); }), HasSubstr("no tensor matches 'c.*'"));
  EXPECT_THAT(refusal([&] { pack_file(in, out, {.weights = {"norm"}}); }), HasSubstr("tensor 'norm' is F32[96]; expected a matrix"));
  EXPECT_THAT(refusal([&] { pack_file(in, out, {.weights = {"a.weight"}, .gated = {"a.gate_up.weight"}}); }),
              HasSubstr("'a.gate_up.weight' is gated but no weight"));
  EXPECT_THAT(refusal([&] {
                pack_file(in, out, {.weights = {"a.weight"}, .quant = Quant::per_1x32, .scale_from = "weight", .scale_to = "scale"});
              }),
              HasSubstr("no tensor 'a.scale'"));
  EXPECT_THAT(refusal([&] { pack_file(in, out, {.weights = {"b.weight"}, .quant = Quant::per_1x32, .scale_from = "q", .scale_to = "s"}); }),
              HasSubstr("has no 'q' in its name"));
  const SafetensorsFile file = SafetensorsFile::open(in);
  EXPECT_THAT(refusal([&] { packed_weight(file.at("a.weight")); }), HasSubstr("expected the U8 bytes of a packed weight"));
}

// Packed tensors start at multiples of 64 bytes in the file, whatever the header's length.
TEST_F(PackFile, packed_tensors_are_aligned) {
  for (size_t length = 1; length < 70; length += 7) {
    const std::string name(length, 'w');
    write_safetensors(in, std::vector<TensorToWrite>{tensor(name.c_str(), plain), tensor("norm", norm)});
    pack_file(in, out, {.weights = {name}});
    const SafetensorsFile file = SafetensorsFile::open(out);
    EXPECT_EQ(product({.b = packed_weight(file.at(name))}), product({.b = plain}));
  }
}

}  // namespace
}  // namespace eitri::checkpoint
