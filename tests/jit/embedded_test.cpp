// The embedded sources are the files of the source folder, and each kernel file can be compiled from them alone.
#include "jit/embedded.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"

namespace eitri::jit {
namespace {

namespace files = std::filesystem;

const files::path kRoot = EITRI_SOURCE_DIR;

std::string text_of(const files::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Kernel files and the device vocabulary: names as #include spells them.
std::set<std::string> roots() {
  std::set<std::string> out;
  for (const auto& entry : files::recursive_directory_iterator(kRoot / "src")) {
    const std::string name = files::relative(entry.path(), kRoot / "src").generic_string();
    const bool is_device = name.starts_with("device/") && name.ends_with(".h") && !name.starts_with("device/x86/");
    if (is_device || (name.starts_with("ops/") && name.ends_with(".cuh"))) out.insert(name);
  }
  return out;
}

TEST(Embedded, texts_are_the_files) {
  std::set<std::string> names;
  for (const auto& [name, text] : embedded_texts()) {
    EXPECT_TRUE(names.emplace(name).second) << name << " is there twice";
    if (name.starts_with("device/x86/")) {
      EXPECT_TRUE(text.starts_with("#error")) << name << " is not for GPUs";
      continue;
    }
    const files::path in_src = kRoot / "src" / name, in_include = kRoot / "include" / name;
    EXPECT_EQ(text, text_of(files::exists(in_src) ? in_src : in_include)) << name;
    EXPECT_FALSE(text.empty()) << name;
  }
  const std::set<std::string> wanted = roots();
  EXPECT_TRUE(std::includes(names.begin(), names.end(), wanted.begin(), wanted.end()));
  EXPECT_THAT(names, testing::IsSupersetOf({"base/numeric.h", "eitri/enums.hpp", "ops/rmsnorm/simt_params.h"}));
}

TEST(Embedded, every_kernel_file_has_all_that_it_includes) {
  int kernels = 0;
  for (const std::string& name : roots()) {
    if (!name.ends_with(".cuh")) continue;
    ++kernels;
    const SourceBundle bundle = embedded_bundle(name);
    EXPECT_EQ(bundle.name.find('/'), std::string::npos);
    const Closure closure = include_closure(bundle);  // throws for what is missing
    std::set<std::string> names;
    for (const auto& [header, text] : closure.headers) names.insert(header);
    EXPECT_TRUE(names.contains(name));
    EXPECT_TRUE(names.contains("base/numeric.h")) << name << " has the arithmetic of the contract";
    // What a compiler without a standard library cannot have. The emulation's header is guarded against GPU compilers.
    for (const std::string& header : closure.system) EXPECT_EQ(header, "cstring") << "<" << header << "> of " << name;
  }
  EXPECT_GE(kernels, 3);
}

TEST(Embedded, unknown_kernel_files_are_refused_with_the_known_ones) {
  for (const char* file : {"ops/rmsnorm/smit.cuh", "device/simt.h", "", ".cuh", "/ops/rmsnorm/simt.cuh"}) {
    try {
      embedded_bundle(file);
      ADD_FAILURE() << file << " is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(file), testing::HasSubstr("ops/rmsnorm/simt.cuh"))) << file;
    }
  }
}

}  // namespace
}  // namespace eitri::jit
