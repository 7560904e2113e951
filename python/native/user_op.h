// User ops from Python: eitri::UserOp by number.
#pragma once

#include <vector>

#include "python.h"

namespace eitri::python {

void add_user_op_methods(std::vector<PyMethodDef>& methods);

}  // namespace eitri::python
