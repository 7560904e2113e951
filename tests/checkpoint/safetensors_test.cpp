// The safetensors reader refuses every malformed file with a message that names file, tensor, found and expected.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/str.h"
#include "checkpoint/temporary_folder.h"

namespace eitri::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string image(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), 8);
  return out + header + std::string(data_bytes, '\1');
}

SafetensorsFile parse(const std::string& text) { return SafetensorsFile::parse(std::as_bytes(std::span(text)), "a.safetensors"); }

std::string refusal(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::invalid_argument);
    return error.what();
  }
  return "accepted";
}

struct BadHeader {
  const char* name;
  const char* header;
  size_t data_bytes;
  const char* message;  // part of it
};

void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.name; }

class BadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsRefused) {
  const BadHeader& bad = GetParam();
  const std::string message = refusal(image(bad.header, bad.data_bytes));
  EXPECT_THAT(message, HasSubstr("a.safetensors"));
  EXPECT_THAT(message, HasSubstr(bad.message));
}

// Headers are padded to multiples of 8 where alignment is not what the case is about.
constexpr BadHeader kBad[] = {
    {"empty_header", "", 0, "does not start with '{'"},
    {"array", "[]      ", 0, "does not start with '{'"},
    {"leading_space", " {}     ", 0, "does not start with '{'"},
    {"not_json", "{nonsense", 0, "not valid JSON"},
    {"unfinished", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1, "not valid JSON"},
    {"trailing_text", R"({} x)", 0, "not valid JSON"},
    {"bad_utf8", "{\"\xff\xfe\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "not valid JSON"},
    {"twice", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
     "'a' is listed twice"},
    {"key_twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "has 'dtype' twice"},
    {"metadata_twice", R"({"__metadata__":{"x":"1","x":"2"}})", 0, "the key 'x' twice"},
    {"metadata_number", R"({"__metadata__":{"x":1}})", 0, "__metadata__ 'x' is 1; expected a string"},
    {"unknown_key", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", 1, "unknown key 'more'"},
    {"no_shape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor 'a': lacks shape"},
    {"no_dtype", R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "lacks dtype"},
    {"no_offsets", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "lacks data_offsets"},
    {"tensor_is_number", R"({"a":3})", 0, "'a' is 3; expected an object"},
    {"dtype_unknown", R"({"a":{"dtype":"F7","shape":[1],"data_offsets":[0,1]}})", 1, "dtype is 'F7'; expected one of F32"},
    {"dtype_number", R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1, "dtype is 7; expected a string"},
    {"dtype_array", R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1, "dtype is an array"},
    {"shape_negative", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "shape holds -1"},
    {"shape_fraction", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1, "shape holds 1.5"},
    {"shape_string", R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, "shape holds the string '1'"},
    {"shape_nested", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "shape holds an array"},
    {"shape_scalar", R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "shape is 1"},
    {"shape_null", R"({"a":{"dtype":"U8","shape":null,"data_offsets":[0,1]}})", 1, "shape is null"},
    {"shape_overflows", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]}})", 1, "more than 2^56"},
    {"shape_over_64_bits", R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1,
     "shape holds 99999999999999999999"},
    {"offsets_one", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "data_offsets is [0]; expected [begin, end]"},
    {"offsets_three", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "expected [begin, end]"},
    {"offsets_backwards", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "expected begin <= end"},
    {"offsets_outside", R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 4, "only 4 bytes of tensor data (truncated?)"},
    {"size_differs", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}     )", 4, "span 4 bytes; expected 8 for F32[2]"},
    {"overlap", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6,
     "tensor 'b' starts at data offset 2 inside tensor 'a'"},
    {"hole", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})", 4,
     "bytes 1 to 3 of the tensor data, before tensor 'b'"},
    {"hole_first", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "bytes 0 to 1"},
    {"tail", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3, "end at data offset 1 but the file has 3 bytes"},
    {"half_byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "3 elements of F4 end inside a byte"},
    {"misaligned", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )", 4, "expected a multiple of 4 for F32"},
};

INSTANTIATE_TEST_SUITE_P(safetensors, BadHeaderTest, ::testing::ValuesIn(kBad), [](const auto& p) { return std::string(p.param.name); });

TEST(Safetensors, ShortAndOversizedHeaders) {
  EXPECT_THAT(refusal(""), HasSubstr("is 0 bytes long; expected at least 8"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("is 7 bytes long"));
  EXPECT_THAT(refusal(std::string("\xff\0\0\0\0\0\0\0{}", 10)), HasSubstr("header length is 255 but only 2 bytes follow"));
  EXPECT_THAT(refusal(std::string(8, '\xff')), HasSubstr("header length is 18446744073709551615; expected at most 100000000"));
}

TEST(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  std::string header = "{\"a\":";
  header.append(1 << 20, '[');
  EXPECT_THAT(refusal(image(header, 0)), HasSubstr("expected an object"));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string good =
      image(R"({"a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[0],"data_offsets":[6,6]}})", 6);
  EXPECT_EQ(parse(good).tensors().size(), 2u);
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(refusal(good.substr(0, n)), "accepted") << n << " bytes";
}

TEST(Safetensors, EmptyTensorsAndScalars) {
  const auto file =
      parse(image(R"({"z":{"dtype":"BF16","shape":[0,5],"data_offsets":[0,0]},"s":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1));
  EXPECT_EQ(file.at("z").size(), 0);
  EXPECT_EQ(file.at("s").size(), 1);
  EXPECT_EQ(to_string(file.at("z")), "BF16[0, 5]");
}

TEST(Safetensors, UnknownTensorListsClosest) {
  const auto file = parse(image(
      R"({"layers.0.w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"other":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2));
  try {
    file.at("layers.0.x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no tensor 'layers.0.x'; it has: layers.0.w, other"));
  }
}

TEST(Safetensors, WriteThenRead) {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.safetensors");
  std::vector<float> f(6);
  std::iota(f.begin(), f.end(), 0.5f);
  const std::vector<uint8_t> u = {1, 2, 3};
  const std::vector<uint16_t> h = {7, 8};
  const TensorToWrite tensors[] = {{"bytes", DType::u8, {3}, u.data()},
                                   {"floats", DType::f32, {2, 3}, f.data()},
                                   {"halves", DType::bf16, {2}, h.data()},
                                   {"none", DType::i64, {0}, nullptr}};
  write_safetensors(path, tensors, {{"format", "pt"}});
  const auto file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(std::memcmp(file.at("floats").data, f.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.at("bytes").data, u.data(), 3), 0);
  EXPECT_EQ(file.at("halves").dtype, DType::bf16);
  EXPECT_EQ(file.at("floats").shape, (std::vector<int64_t>{2, 3}));
}

TEST(Safetensors, MissingFileIsAnIoError) {
  try {
    SafetensorsFile::open("/nowhere/x.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io_error);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/x.safetensors"));
  }
}

class ShardedTest : public ::testing::Test {
 protected:
  void index(const std::string& text) { folder_.write("model.safetensors.index.json", text); }
  std::string refusal_at(const std::string& tensor) {
    try {
      TensorFolder::open(folder_.path()).at(tensor);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  void shard(const std::string& name, const std::string& tensor) {
    const float value = 2;
    const TensorToWrite one[] = {{tensor, DType::f32, {1}, &value}};
    write_safetensors(folder_.file(name), one);
  }
  TemporaryFolder folder_;
};

TEST_F(ShardedTest, FindsTensorsInTheirShards) {
  index(R"({"metadata":{"total_size":8},"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})");
  shard("m1.safetensors", "a");
  shard("m2.safetensors", "b");
  auto folder = TensorFolder::open(folder_.path());
  EXPECT_EQ(folder.at("b").size(), 1);
  EXPECT_EQ(folder.names("a"), std::vector<std::string>{"a"});
  EXPECT_FALSE(folder.has("c"));
  EXPECT_THAT(refusal_at("c"), HasSubstr("has no tensor 'c'; it has: a, b"));
}

TEST_F(ShardedTest, MissingShard) {
  index(R"({"weight_map":{"a":"m1.safetensors"}})");
  EXPECT_THAT(refusal_at("a"), HasSubstr("m1.safetensors does not exist"));
}

TEST_F(ShardedTest, MissingTensor) {
  index(R"({"weight_map":{"a":"m1.safetensors"}})");
  shard("m1.safetensors", "b");
  EXPECT_THAT(refusal_at("a"), HasSubstr("puts tensor 'a' into m1.safetensors, which does not have it"));
}

TEST_F(ShardedTest, PathTraversal) {
  for (const char* name : {"../x", "/etc/passwd", "a/b", "..", "", "a\\\\b"}) {
    index(str(R"({"weight_map":{"a":")", name, R"("}})"));
    EXPECT_THAT(refusal_at("a"), HasSubstr("expected a file name without folders")) << name;
  }
}

TEST_F(ShardedTest, BadIndex) {
  index("{");
  EXPECT_THAT(refusal_at("a"), HasSubstr("is not a JSON object"));
  index("{}");
  EXPECT_THAT(refusal_at("a"), HasSubstr("lacks the object 'weight_map'"));
  index(R"({"weight_map":{"a":3}})");
  EXPECT_THAT(refusal_at("a"), HasSubstr("weight_map['a'] is 3; expected a file name"));
}

TEST_F(ShardedTest, NeitherFileNorIndex) { EXPECT_THAT(refusal_at("a"), HasSubstr("has neither model.safetensors nor")); }

}  // namespace
}  // namespace eitri::checkpoint
