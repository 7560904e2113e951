// What the compilers that are programs have in common: write the sources, run, read the binary.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jit/compiler.h"

namespace eitri::jit {

/// Name of the binary in the working folder, for the command.
inline constexpr const char* kOutputName = "out.bin";

/// Runs `argv` in a temporary folder that holds the main text and its headers under their names, and reads kOutputName. A
/// full temporary folder is no verdict on the source: the next place is tried.
Compiled run_compiler(const std::vector<std::string>& argv, const CompileRequest& request, const Closure& closure);

/// The first line with a digit of what `program --version` prints, or nothing when it does not answer.
std::string version_line(const std::string& program);

/// -D for every define.
void append_defines(std::vector<std::string>& argv, const CompileRequest& request);

/// "clang 22.1.8 (…), build-id …": what goes into identity().
std::string program_identity(std::string_view name, const std::string& path, const std::string& version);

/// A regular file that may be executed.
bool is_program(const std::string& path);

/// Folders that may hold a vendor's libraries: LD_LIBRARY_PATH, the given install prefixes, system folders, and the
/// `nvidia/*/lib` folders of Python packages beside us or in the environment's interpreter. In order of preference.
std::vector<std::string> library_folders(const std::vector<std::string>& prefixes);
/// library_folders() of the CUDA toolkit: CUDA_HOME, CUDA_PATH, /usr/local/cuda*.
std::vector<std::string> cuda_library_folders();
/// The file `stem` + ".N[.N…]" of the highest version in the first folder that has one, or plain `stem`; else empty.
std::string find_library(const std::vector<std::string>& folders, std::string_view stem);
/// Paths that match a pattern with '*', the highest version first.
std::vector<std::string> glob_newest_first(const std::string& pattern);

}  // namespace eitri::jit
