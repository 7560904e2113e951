#include "base/error.h"

namespace eitri {

void fail(Code code, std::string message) { throw Error(code, message); }

}  // namespace eitri
