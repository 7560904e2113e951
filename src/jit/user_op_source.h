// The C++ text that is compiled for a user op.
#pragma once

#include <string>

#include "jit/declaration.h"
#include "jit/source.h"

namespace eitri::jit {

/// The whole translation unit; messages of the compiler count lines from the start of `body` and of `before`.
std::string user_op_text(const Declaration& declaration, const std::string& before, const std::string& body);
/// The header that it includes: tensors and 16-bit floats.
const HeaderSet& user_op_headers();

}  // namespace eitri::jit
