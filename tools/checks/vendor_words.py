"""Words of one vendor's world appear only in device/, backend/, jit/ and files named after a machine. Comments are free."""
import re
import sys

import repo

FREE = ("src/device/", "src/backend/", "src/jit/")
# Not preceded by a letter and, for short words, not followed by a small letter: "hipMalloc" counts, "hippo" does not.
WORDS = re.compile(r"(?<![A-Za-z])(?:"
                   r"(?:cuda|Cuda|CUDA|hip|Hip|HIP|rocm|ROCm|ROCM|nvidia|NVIDIA|amd|AMD|ptx|PTX)(?![a-z])"
                   r"|wgmma|mfma|MFMA|mbarrier|cublas|cuBLAS|cudnn|cuDNN|hipblas|nvrtc|NVRTC|nvcc|hiprtc|hipcc"
                   r"|cutlass|__shfl|__syncthreads|__launch_bounds__|threadIdx|blockIdx|blockDim|gridDim|warpSize)\w*")
# The kinds of device are part of the public vocabulary: the enumerators and their names as text.
VOCABULARY = re.compile(r'DeviceKind::(?:cuda|hip)\b|\bcuda:(?=[N\d"])|Backend::(?:cuda|hip)\b|"(?:cuda|hip)"|enum class DeviceKind[^}]*}')
# DLPack names its devices so.
DLPACK = re.compile(r"kDL(?:CUDA|ROCM)\w*")


# base/numeric.h is also kernel code: it marks its functions for both sides.
SHARED_WITH_KERNELS = re.compile(r"__(?:CUDACC|CUDACC_RTC|HIPCC|HIPCC_RTC|HIP|CUDA)__")


def check(root):
    findings = []
    for path in repo.files(root, "src", "include", "tools", suffixes=repo.CODE):
        if path.startswith(FREE) or repo.is_kernel_file(path):
            continue
        source = repo.strip_comments(repo.text(root, path))
        for pattern in (VOCABULARY, DLPACK) + ((SHARED_WITH_KERNELS,) if path == "src/base/numeric.h" else ()):
            source = pattern.sub("", source)
        for number, line in enumerate(source.splitlines(), 1):
            match = WORDS.search(line)
            if match:
                findings.append(f"{path}:{number}: '{match[0]}' belongs in device/, backend/, jit/ or a file named after its machine")
    return findings


CASES = [
    ("free folders", {"src/backend/gpu.cpp": "cudaMalloc();", "src/ops/a/sm90_wgmma.cpp": "wgmma();"}, None),
    ("in an op", {"src/ops/a/a.cpp": "int x;\ncudaMalloc();\n"}, "a.cpp:2: 'cudaMalloc'"),
    ("a warp intrinsic", {"src/ops/a/simt.cuh": "__shfl_xor_sync(x);"}, "__shfl"),
    ("part of an identifier", {"src/ops/a/a.cpp": "bool is_cuda;"}, "cuda"),
    ("other words", {"src/ops/a/a.cpp": "int relationship, hippo, champ, amdahl;"}, None),
    ("comments and the enum", {"src/base/a.h": "// AMD does this\nenum class DeviceKind { cpu, cuda, hip };\nreturn DeviceKind::hip;"}, None),
]

if __name__ == "__main__":
    sys.exit(repo.main(sys.modules[__name__]))
