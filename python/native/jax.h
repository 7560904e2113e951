// JAX: custom-call handlers of XLA.
#pragma once

#include <vector>

#include "python.h"

namespace eitri::python {

void add_jax_methods(std::vector<PyMethodDef>& methods);

}  // namespace eitri::python
