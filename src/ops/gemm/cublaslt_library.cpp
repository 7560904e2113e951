#include "ops/gemm/cublaslt_library.h"

#include <dlfcn.h>

#include "base/str.h"
#include "jit/command.h"

namespace eitri::cublaslt {

namespace {

struct Loaded {
  Library library;
  bool ok = false;
  std::string why;
};

/// A copy that the process has already (PyTorch's, say) comes first, then the loader's own search, then the usual folders.
void* open_library() {
  for (const int mode : {RTLD_NOLOAD, 0})
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (void* const found = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | mode); found != nullptr) return found;
  const std::string path = jit::find_library(jit::cuda_library_folders(), "libcublasLt.so");
  return path.empty() ? nullptr : ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

Loaded load() {
  Loaded out;
  void* const handle = open_library();
  if (handle == nullptr) {
    out.why =
        "libcublasLt.so is neither in LD_LIBRARY_PATH, CUDA_HOME, /usr/local/cuda*, the system's folders nor in a Python environment "
        "(package nvidia-cublas)";
    return out;
  }
  std::string missing;
  const auto find = [&]<class F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(::dlsym(handle, name));
    if (function == nullptr) missing += str(missing.empty() ? "" : ", ", name);
  };
  Library& l = out.library;
  find(l.get_version, "cublasLtGetVersion");
  find(l.create, "cublasLtCreate");
  find(l.desc_create, "cublasLtMatmulDescCreate");
  find(l.desc_set, "cublasLtMatmulDescSetAttribute");
  find(l.desc_destroy, "cublasLtMatmulDescDestroy");
  find(l.layout_create, "cublasLtMatrixLayoutCreate");
  find(l.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(l.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(l.preference_create, "cublasLtMatmulPreferenceCreate");
  find(l.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(l.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(l.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(l.matmul, "cublasLtMatmul");
  out.ok = missing.empty();
  if (!out.ok) out.why = str("libcublasLt.so lacks ", missing);
  return out;
}

const Loaded& loaded() {
  static const Loaded state = load();
  return state;
}

}  // namespace

const Library* library() { return loaded().ok ? &loaded().library : nullptr; }
const std::string& library_absence() { return loaded().why; }

}  // namespace eitri::cublaslt
