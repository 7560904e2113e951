#include "jit/extent_expression.h"

#include <gmock/gmock.h>

#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kNames = {"n", "tokens"};

int64_t value(const char* text, int64_t n, int64_t tokens = 1) {
  const int64_t extents[] = {n, tokens};
  return ExtentExpression(text, kNames, "op: gpu.blocks").value(extents);
}
std::string refusal(const std::string& text) {
  return error_of([&] { value(text.c_str(), 1); });
}

TEST(ExtentExpression, Values) {
  EXPECT_EQ(value("n", 7), 7);
  EXPECT_EQ(value("12", 7), 12);
  EXPECT_EQ(value("(n + 255) / 256", 257), 2);
  EXPECT_EQ(value(" 2*n+3 * tokens", 5, 7), 31);
  EXPECT_EQ(value("n - tokens - 1", 10, 4), 5) << "from the left";
  EXPECT_EQ(value("n / 2 / 2", 9), 2);
  EXPECT_EQ(value("n - (tokens - 1)", 10, 4), 7);
  EXPECT_EQ(value("(1 - n) / 2", 4), -2) << "rounds down";
  EXPECT_EQ(value("((((n))))", 3), 3);
  EXPECT_EQ(value("1+(1+(1+(1+(1+(1+(1+(1+(1+(1+(1+(1+(1+(1+(1+(1+n*(2+n*3))))))))))))))))", 2), 32);
}

TEST(ExtentExpression, RefusalsShowTheSpot) {
  EXPECT_EQ(refusal("n + m"), "op: gpu.blocks is \"n + m\", with \"m\" at character 5; expected a number, '(', n, tokens");
  EXPECT_THAT(refusal("(n"), HasSubstr("its end at character 3; expected ')'"));
  for (const char* text : {"", "n n", "n +", "*n", "-n", "n)", "n % 2", "1.5", "4294967296", "N", "tokens2"})
    EXPECT_NE(refusal(text), "") << text;
  EXPECT_THAT(refusal(std::string(30, '(') + "n" + std::string(30, ')')), HasSubstr("fewer parentheses"));
  EXPECT_NE(refusal(std::string(501, '1')), "");
  EXPECT_THAT(refusal("n / (tokens - 1)"), HasSubstr("divides by 0"));
  EXPECT_THAT(error_of([] { value("n * n", int64_t{1} << 40); }), HasSubstr("beyond 2^62"));
}

}  // namespace
}  // namespace eitri::jit
