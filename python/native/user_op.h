// User ops from Python: a capsule that holds an eitri::UserOp, and its call.
#pragma once

#include <vector>

#include "python.h"

namespace eitri::python {

void add_user_op_methods(std::vector<PyMethodDef>& methods);

}  // namespace eitri::python
