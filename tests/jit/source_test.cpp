#include "jit/source.h"

#include <gtest/gtest.h>

#include "jit/temporary_folder.h"

namespace eitri::jit {
namespace {

std::vector<std::string> names_of(const Closure& closure) {
  std::vector<std::string> out;
  for (const auto& [name, text] : closure.headers) out.push_back(name);
  return out;
}

SourceBundle bundle(const std::string& text) {
  SourceBundle out = {.name = "main.cu", .text = text};
  out.headers.add("device/simt.h", "#include \"device/vec.h\"\n#include <cuda_fp8.h>\n");
  out.headers.add("device/vec.h", "#pragma once\n#include \"device/simt.h\"\n");
  out.headers.add("unused.h", "#include \"nowhere.h\"\n");
  out.headers.add("cstdint", "typedef int int32_t;");
  return out;
}

TEST(Source, ClosureFollowsOwnHeaders) {
  const Closure closure = include_closure(bundle("#include \"device/simt.h\"\n  #  include <cstdint> // x\n#include <vector>\n"));
  EXPECT_EQ(names_of(closure), (std::vector<std::string>{"cstdint", "device/simt.h", "device/vec.h"}));
  EXPECT_EQ(closure.system, (std::vector<std::string>{"cuda_fp8.h", "vector"}));
}

TEST(Source, OnlyDirectivesCount) {
  const std::string text =
      "// #include \"a.h\"\n/* \n#include \"b.h\"\n*/ int x = 1'000;\nconst char* s = \"\\\n#include \\\"c.h\\\"\";\n"
      "const char* r = R\"x(\n#include \"d.h\"\n)x\";\n// continued \\\n#include \"e.h\"\nchar q = '\"';\n#include \\\n\"device/vec.h\"\n";
  EXPECT_EQ(names_of(include_closure(bundle(text))), (std::vector<std::string>{"device/simt.h", "device/vec.h"}));
}

TEST(Source, AllBranchesCount) {
  EXPECT_EQ(names_of(include_closure(bundle("#ifdef NEVER\n#include \"device/vec.h\"\n#endif\n"))).size(), 2u);
}

TEST(Source, ErrorsNameFileAndInclude) {
  const auto refusal = [](const std::string& text) { return error_of([&] { include_closure(bundle(text)); }); };
  EXPECT_EQ(refusal("#include \"missing.h\"\n"),
            "jit: main.cu includes \"missing.h\"; expected one of cstdint, device/simt.h, device/vec.h, unused.h");
  EXPECT_EQ(refusal("#include \"unused.h\"\n").find("jit: unused.h includes \"nowhere.h\""), 0u);
  EXPECT_NE(refusal("#include HEADER\n").find("a computed include"), std::string::npos);
  EXPECT_NE(refusal("#include \"/etc/passwd\"\n"), "");
  EXPECT_NE(refusal("#include </etc/passwd>\n"), "");
  EXPECT_NE(refusal("#include <../x>\n"), "");
  EXPECT_NE(refusal("#include \"device/../device/vec.h\"\n"), "");
}

// A compiler that looks beside the includer would take the other header, which the key does not know of.
TEST(Source, AmbiguousNames) {
  SourceBundle source = {.name = "main.cu", .text = "#include \"device/a.h\"\n"};
  source.headers.add("device/a.h", "#include \"b.h\"\n");
  source.headers.add("b.h", "");
  EXPECT_EQ(include_closure(source).headers.size(), 2u);
  source.headers.add("device/b.h", "");
  EXPECT_NE(error_of([&] { include_closure(source); }).find("device/b.h"), std::string::npos);
}

TEST(Source, NamesStayInTheFolder) {
  for (const char* name : {"", "/a.h", "../a.h", "a/../../b.h", "a//b.h", "./a.h", "a b.h", "a\n.h", "a;b"}) {
    HeaderSet headers;
    EXPECT_NE(error_of([&] { headers.add(name, ""); }), "") << name;
    EXPECT_NE(error_of([&] { include_closure({.name = name}); }), "") << name;
  }
  HeaderSet headers;
  headers.add("a.h", "1");
  headers.add("a.h", "1");
  EXPECT_NE(error_of([&] { headers.add("a.h", "2"); }), "");
}

// Nothing that a hostile text can hold makes the scanner leave it.
TEST(Source, OddTexts) {
  for (const char* text : {"/*", "\"", "'", "R\"", "R\"(", "R\"x(", "\\", "//", "// \\", "#", "#include", "#include ", "#include \"",
                           "#include <", "#include \"\n", "#includefoo \"x.h\"", "\"\\", "R\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa("}) {
    error_of([&] { include_closure(bundle(text)); });
    error_of([&] { include_closure(bundle(str(text, "\n#include \"device/vec.h\"\n"))); });
  }
}

}  // namespace
}  // namespace eitri::jit
