// require(): the only way the library refuses an argument. Message parts are joined only on
// failure.
#pragma once

#include <string>

#include "base/str.h"
#include "eitri/types.hpp"

namespace eitri {

[[noreturn]] void fail(Code code, std::string message);

/// Throws Error{invalid_argument} made of `parts` unless `ok`. Write "op: argument is X; expected Y
/// (why)".
template <class... Parts> inline void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(Code::invalid_argument, str(parts...));
}

}  // namespace eitri
