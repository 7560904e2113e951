#include "jit/user_op.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <thread>

#include "base/numeric.h"
#include "base/view.h"
#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

std::string parse_error(std::string_view text) {
  return error_of([&] { parse_declaration(text); });
}

TEST(Declaration, Parts) {
  const Declaration d = parse_declaration(" scale ( x : f32[ n, 2*k ] ,y: out strided bf16[n,4], alpha: f64, m: in i64 ) ");
  EXPECT_EQ(d.name, "scale");
  EXPECT_EQ(d.extents, (std::vector<std::string>{"n", "k"}));
  ASSERT_EQ(d.parameters.size(), 4u);
  EXPECT_EQ(d.parameters[0].type, "f32[ n, 2*k ]");
  EXPECT_EQ(d.parameters[0].shape[1].factor, 2);
  EXPECT_EQ(d.parameters[0].shape[1].name, 1);
  EXPECT_EQ(d.parameters[1].use, UserUse::out);
  EXPECT_TRUE(d.parameters[1].strided);
  EXPECT_EQ(d.parameters[1].shape[1].name, -1);
  EXPECT_EQ(d.parameters[2].scalar, UserScalar::f64);
  EXPECT_EQ(d.parameters[3].scalar, UserScalar::i64);
  EXPECT_TRUE(parse_declaration("f()").parameters.empty());
}

TEST(Declaration, ErrorsShowTheSpot) {
  EXPECT_EQ(parse_error("scale(x: f33[n])"),
            "user op: the declaration \"scale(x: f33[n])\" has \"f33[n])\" at character 10; expected an element type: f32, f16, bf16, i8, "
            "u8, i32, i64");
  EXPECT_NE(parse_error("scale(x: f32[n]").find("has its end at character 16; expected ')'"), std::string::npos);
  for (const char* text : {"",
                           "scale",
                           "1(x: f32)",
                           "f(x)",
                           "f(x f32)",
                           "f(x: )",
                           "f(x: f32[])",
                           "f(x: f32[n)",
                           "f(x: f32[n],)",
                           "f(x: f32) y",
                           "f(x: out f32)",
                           "f(x: strided f32)",
                           "f(x: f32, x: f32)",
                           "f(x: f32[x])",
                           "f(n: i64, x: f32[n])",
                           "f(x: f32[n], n: i64)",
                           "f(x: f32[0*n])",
                           "f(x: f32[-1])",
                           "f(x: f32[n*2])",
                           "f(x: f32[a,b,c,d,e])",
                           "f(_x: f32)",
                           "f(eitri_x: f32)",
                           "f(a__b: f32)",
                           "f(x: f32[99999999999999999999])",
                           "f(x: f4e2m1[n])",
                           "f(x: bool)",
                           "f(x: f32); int main(",
                           "f(x: f32[n])\n#include \"x\""}) {
    EXPECT_NE(parse_error(text), "") << text;
  }
  std::string many = "f(a0: f32";
  for (int i = 1; i < 17; ++i) many += str(", a", i, ": f32");
  EXPECT_NE(parse_error(many + ")").find("at most 16"), std::string::npos);
  EXPECT_NE(parse_error(std::string(20'000, 'f')), "");
}

class UserOps : public testing::Test {
 protected:
  void SetUp() override {
    const FoundCompiler found = find_host_cxx();
    if (!found.compiler) GTEST_SKIP() << found.reason;
  }
  const TemporaryFolder folder;
  Cache cache{{.root = folder / "cache/jit", .lock_folder = ""}};
};

TEST_F(UserOps, CompilesOnTheFirstCall) {
  const UserOp scale("scale(x: f32[n], y: out f32[n], alpha: f32)", {.body = "for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);"},
                     &cache);
  EXPECT_EQ(cache.counters().compiled, 0u);
  const std::vector<float> x = {1, -2, 3, 0.5f};
  std::vector<float> y(4);
  scale(View(x.data(), DType::f32, {4}), View(y.data(), DType::f32, {4}), 0.5f);
  EXPECT_EQ(y, (std::vector<float>{0.5f, -1, 1.5f, 0.25f}));
  scale(View(x.data(), DType::f32, {3}), View(y.data(), DType::f32, {3}), 2);  // another size, an integer for a float
  EXPECT_EQ(y, (std::vector<float>{2, -4, 6, 0.25f}));
  scale(View(nullptr, DType::f32, {0}), View(nullptr, DType::f32, {0}), 2.0);
  EXPECT_EQ(cache.counters().compiled, 1u);

  Cache again({.root = folder / "cache/jit", .lock_folder = ""});
  const UserOp second("scale(x: f32[n], y: out f32[n], alpha: f32)", {.body = "for (int64_t i = 0; i < n; ++i) y(i) = alpha * x(i);"},
                      &again);
  second(View(x.data(), DType::f32, {4}), View(y.data(), DType::f32, {4}), 1);
  EXPECT_EQ(y, x);
  EXPECT_EQ(again.counters().compiled, 0u);
  EXPECT_EQ(again.counters().disk, 1u);
}

TEST_F(UserOps, ErrorsNameArgumentGotAndWanted) {
  const UserOp op("mix(x: f32[n, 2*k], y: out f32[n, k], z: i32[3], alpha: f32, m: i32)", {.body = ""}, &cache);
  std::vector<float> x(100), y(100);
  std::vector<int32_t> z(3);
  const View xv(x.data(), DType::f32, {4, 6}), yv(y.data(), DType::f32, {4, 3}), zv(z.data(), DType::i32, {3});
  const auto error = [&](auto&&... args) {
    Code code = Code::ok;
    const std::string message = error_of([&] { op(args...); }, &code);
    EXPECT_EQ(code, message.empty() ? Code::ok : Code::invalid_argument);
    return message;
  };
  EXPECT_EQ(error(xv, yv, zv, 1.0f, 2), "");
  EXPECT_EQ(error(xv, yv), "mix: 2 arguments are given; expected 5");
  EXPECT_EQ(error(View(x.data(), DType::bf16, {4, 6}), yv, zv, 1.0f, 2), "mix: x is bf16[4, 6]; expected f32[n, 2*k]");
  EXPECT_EQ(error(View(x.data(), DType::f32, {24}), yv, zv, 1.0f, 2), "mix: x is f32[24]; expected f32[n, 2*k]");
  EXPECT_EQ(error(xv, View(y.data(), DType::f32, {5, 3}), zv, 1.0f, 2), "mix: y is f32[5, 3]; expected f32[n, k] with n = 4 (from x)");
  EXPECT_EQ(error(xv, View(y.data(), DType::f32, {4, 2}), zv, 1.0f, 2), "mix: x is f32[4, 6]; expected f32[n, 2*k] with k = 2 (from y)");
  EXPECT_EQ(error(xv, yv, View(z.data(), DType::i32, {2}), 1.0f, 2), "mix: z is i32[2]; expected i32[3]");
  EXPECT_EQ(error(View(), yv, zv, 1.0f, 2), "mix: x is not given; expected f32[n, 2*k]");
  EXPECT_EQ(error(xv, 1, zv, 1.0f, 2), "mix: y is a number; expected f32[n, k]");
  EXPECT_EQ(error(xv, yv, zv, zv, 2), "mix: alpha is a tensor; expected a number of type f32");
  EXPECT_EQ(error(xv, yv, zv, 1e300, 2), "mix: alpha is the number 1e+300; expected a number of type f32");
  EXPECT_NE(error(xv, yv, zv, 1.0f, 1.5).find("m is the number 1.5"), std::string::npos);
  EXPECT_EQ(error(xv, yv, zv, 1.0f, int64_t{1} << 31), "mix: m is the number 2147483648; expected a number of type i32");
  EXPECT_NE(error(xv, yv, zv, 1.0f, UINT64_MAX), "");
  EXPECT_EQ(error(xv, yv, zv, INFINITY, 2), "") << "not a value that does not fit";
  View strided = xv;
  strided.stride[0] = 10;
  EXPECT_NE(error(strided, yv, zv, 1.0f, 2).find("that is contiguous"), std::string::npos);
  View gpu = xv;
  gpu.device.kind = DeviceKind::cuda;
  EXPECT_NE(error(gpu, yv, zv, 1.0f, 2).find("host memory"), std::string::npos);
  View null = xv;
  null.data = nullptr;
  EXPECT_NE(error(null, yv, zv, 1.0f, 2), "");
  View broadcast = yv;
  broadcast.stride[0] = 0;
  EXPECT_NE(error(xv, broadcast, zv, 1.0f, 2), "");
  EXPECT_NE(error(xv, View(x.data() + 3, DType::f32, {4, 3}), zv, 1.0f, 2).find("y overlaps x"), std::string::npos);
}

TEST_F(UserOps, ExtentsOnlyInProducts) {
  const UserOp op("half(x: f32[2*k], count: out i64[1])", {.body = "count(0) = k;"}, &cache);
  std::vector<float> x(8);
  int64_t count = 0;
  op(View(x.data(), DType::f32, {8}), View(&count, DType::i64, {1}));
  EXPECT_EQ(count, 4);
  EXPECT_EQ(error_of([&] { op(View(x.data(), DType::f32, {7}), View(&count, DType::i64, {1})); }),
            "half: x is f32[7]; expected f32[2*k] (a multiple of 2)");
}

TEST_F(UserOps, StridesRanksAndInPlace) {
  const UserOp op("sum(x: strided f32[a, b, c, d], y: inout strided f32[a], total: out f32[1])", {.body = R"(
total[0] = 0;
for (int64_t i = 0; i < a; ++i)
  for (int64_t j = 0; j < b; ++j)
    for (int64_t k = 0; k < c; ++k)
      for (int64_t l = 0; l < d; ++l) y(i) += x(i, j, k, l);
for (int64_t i = 0; i < a; ++i) total(0) += y(i);
if (x.size() != a * b * c * d || x.shape[1] != b || x.stride(3) != 2) total(0) = -1;
)"},
                  &cache);
  std::vector<float> x(2 * 3 * 4 * 5 * 2), y = {100, 7, 200, 7};
  std::iota(x.begin(), x.end(), 0.0f);
  View xv(x.data(), DType::f32, {2, 3, 4, 5});
  for (int64_t& stride : xv.stride) stride *= 2;
  View yv(y.data(), DType::f32, {2});
  yv.stride[0] = 2;
  float total = 0;
  op(xv, yv, View(&total, DType::f32, {1}));
  float sums[2] = {};
  for (size_t i = 0; i < x.size(); i += 2) sums[i / 120] += x[i];
  EXPECT_EQ(y, (std::vector<float>{100 + sums[0], 7, 200 + sums[1], 7}));
  EXPECT_EQ(total, 300 + sums[0] + sums[1]);
}

// The 16-bit types of the prelude agree with the numerics contract for every code and around every rounding edge.
TEST_F(UserOps, SixteenBitFloats) {
  const UserOp bf("to_bf16(x: f32[n], y: out bf16[n], back: out f32[n])",
                  {.body = "for (int64_t i = 0; i < n; ++i) y(i) = x(i), back(i) = y(i);"}, &cache);
  const UserOp half("to_f16(x: f32[n], y: out f16[n], back: out f32[n])",
                    {.body = "for (int64_t i = 0; i < n; ++i) y(i) = x(i), back(i) = y(i);"}, &cache);
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u}) {
      const uint32_t bits = high << 16 | low;
      float value;
      std::memcpy(&value, &bits, 4);
      x.push_back(value);
    }
  }
  const auto n = static_cast<int64_t>(x.size());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    std::vector<uint16_t> y(x.size());
    std::vector<float> back(x.size());
    (dtype == DType::bf16 ? bf : half)(View(x.data(), DType::f32, {n}), View(y.data(), dtype, {n}), View(back.data(), DType::f32, {n}));
    for (size_t i = 0; i < x.size(); ++i) {
      uint16_t wanted = 0;
      store_at(&wanted, dtype, 0, static_cast<double>(x[i]));
      const double value = load_at(&y[i], dtype, 0);
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(value) && std::isnan(back[i])) << i;
      } else {
        ASSERT_EQ(y[i], wanted) << to_string(dtype) << " of " << x[i];
        ASSERT_EQ(static_cast<double>(back[i]), value) << x[i];
      }
    }
  }
}

TEST_F(UserOps, MessagesCountTheUsersLines) {
  const UserOp bad("bad(x: f32[n])", {.body = "\n\nx(0) = unknown_thing;", .before = "\nint twice(int a) { return 2 * b; }"}, &cache);
  float x = 0;
  for (int i = 0; i < 2; ++i) {
    Code code = Code::ok;
    const std::string error = error_of([&] { bad(View(&x, DType::f32, {1})); }, &code);
    EXPECT_EQ(code, Code::compile_failed);
    EXPECT_NE(error.find("bad:3:"), std::string::npos) << error;
    EXPECT_NE(error.find("bad before:2:"), std::string::npos) << error;
    EXPECT_NE(error.find("unknown_thing"), std::string::npos) << error;
    EXPECT_NE(error.find("command: "), std::string::npos) << error;
    const size_t at = error.find("source: ");
    ASSERT_NE(at, std::string::npos) << error;
    EXPECT_TRUE(std::filesystem::exists(error.substr(at + 8)));
  }
}

TEST_F(UserOps, InputsAreConst) {
  const UserOp bad("bad(x: f32[n])", {.body = "x(0) = 1;"}, &cache);
  EXPECT_NE(error_of([&] { bad.compile(); }).find("read-only"), std::string::npos);
}

TEST_F(UserOps, WithoutAFolder) {
  Cache memory({.root = "", .lock_folder = ""});
  int64_t a = 0, b = 0;
  const UserOp one("one(y: out i64[1])", {.body = "y(0) = 1;"}, &memory), two("two(y: out i64[1])", {.body = "y(0) = 2;"}, &memory);
  one(View(&a, DType::i64, {1}));
  two(View(&b, DType::i64, {1}));
  one(View(&a, DType::i64, {1}));
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2);
}

TEST_F(UserOps, HeadersExceptionsThreads) {
  UserSource source = {.body = "if (value < 0) throw std::runtime_error(\"negative\");\ny(0) = square(value);",
                       .before = "#include <stdexcept>\n#include \"square.h\"",
                       .flags = {"-O1"}};
  source.headers.add("square.h", "inline int64_t square(int64_t v) { return v * v; }\n");
  const UserOp op("square(value: i64, y: out i64[1])", source, &cache);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&op, i] {
      for (int k = 0; k < 100; ++k) {
        int64_t y = 0;
        op(i, View(&y, DType::i64, {1}));
        EXPECT_EQ(y, i * i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.counters().compiled, 1u);
  int64_t y = 0;
  EXPECT_THROW(op(-1, View(&y, DType::i64, {1})), std::runtime_error);
}

}  // namespace
}  // namespace eitri::jit
