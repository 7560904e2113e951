// What is demanded of every GPU kernel, whatever it does.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "compile/kernel_binary.h"
#include "jit/compiler.h"
#include "ops/quantize/simt_shape.h"

namespace eitri {

/// "rmsnorm_block_per_row EITRI_X=bf16 ...".
inline std::string text_of(const SimtEntry& entry) {
  std::string text = entry.entry;
  for (const std::string& define : entry.defines) text += " " + define;
  return text;
}

/// The entry compiles without a warning, under its plain name, needs no memory for its registers, and takes an argument of the
/// host's size. Call it in ASSERT_NO_FATAL_FAILURE; `facts` receives the rest.
inline void check_entry(const SimtEntry& entry, size_t argument_bytes, const jit::Compiler& compiler, const Device& device,
                        KernelFacts (*read)(std::string_view), KernelFacts& facts) {
  const jit::CompileRequest request = compile_request(entry.source(), "test", device);
  jit::check_request(request);
  const jit::Compiled compiled = compiler.compile(request, jit::include_closure(request.source));
  ASSERT_TRUE(compiled.ok) << compiled.log;
  EXPECT_EQ(compiled.log.find("warning"), std::string::npos) << compiled.log;
  ASSERT_NE(compiled.binary.find(entry.entry), std::string::npos) << "the entry is not in the binary under its plain name";
  facts = read(compiled.binary);
  ASSERT_EQ(facts.problem, "");
  EXPECT_EQ(facts.stack_bytes, 0);
  EXPECT_EQ(facts.argument_bytes, static_cast<int64_t>(argument_bytes))
      << "host and kernel differ about the argument, or it has hidden ones";
}

}  // namespace eitri
