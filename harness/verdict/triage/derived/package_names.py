"""The packages that files, modules, libraries and symbols of the linker belong to."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

#: Import name -> package on the index, where they differ by more than underscores.
IMPORTED_AS = {"megatron": "megatron-core", "swift": "ms-swift", "torchair": "torch-npu", "PIL": "pillow"}
#: Import names that can be found in the path of a checkout, outside of a folder of installed packages.
CHECKED_OUT = (
    *("vllm_ascend", "vllm_omni", "torch_npu", "transformers", "tensordict", "mindspeed", "mindspeed_llm"),
    *(
        "mindspeed_rl",
        "mbridge",
        "megatron",
        "accelerate",
        "llamafactory",
        "swift",
        "verl",
        "vllm",
        "peft",
        "ray",
    ),
    *("triton", "torch", "trl", "deepspeed", "sglang", "lmdeploy", "dlinfer", "xtuner", "numpy"),
)
INSTALLED = re.compile(r"(?:site|dist)-packages/(?P<top>[\w-]+)")
# The namespace or prefix of a symbol -> who defines it.
GIVERS = (
    (re.compile(r"^(?:c10_npu|at_npu|torch_npu)::"), "torch-npu"),
    (re.compile(r"^(?:torch|c10|c10d|at|caffe2|THP)(?:::|$)|^THP"), "torch"),
    (re.compile(r"^(?:atb|Mki|AtbOps|asdops|AsdSip)::"), "NNAL"),
    (
        re.compile(
            r"^(?:acl|aclrt|aclnn|aclop|aclmdl|Hccl|hccl|hcom|Msprof|Adx|rt[A-Z]|ge::|gert::|op::|AscendC|drv|halG|dcmi)"
        ),
        "CANN",
    ),
    (re.compile(r"^_?Py[A-Z_]"), "Python"),
    (re.compile(r"^p?nccl[A-Z]"), "NCCL"),
    (re.compile(r"^(?:cuda|cublas|cudnn|cusparse|cusolver|nvrtc|nvJitLink)[A-Z]|^__nvJitLink"), "CUDA"),
)
LIBRARIES = (
    (re.compile(r"^flash_attn_\d_cuda"), "flash-attn"),
    (re.compile(r"^libtorch_npu"), "torch-npu"),
    (re.compile(r"^lib(?:torch|c10|shm)(?:_|\.|$)|^libtorch_\w+"), "torch"),
    (re.compile(r"^lib(?:atb|mki|asdops|lcal|tbe_adapter)"), "NNAL"),
    (re.compile(r"^lib(?:ascend_hal|drv\w*|dcmi)\b"), "the NPU driver"),
    (
        re.compile(
            r"^lib(?:ascendcl|hccl|opapi|nnopbase|ge_|gert|runtime|msprof|acl|error_manager|graph|platform|tiling)"
        ),
        "CANN",
    ),
)
# The versions of the C and C++ libraries of the system that a library was linked with.
SYSTEM_LIBRARIES = {"GLIBC": "glibc", "GLIBCXX": "libstdc++", "CXXABI": "libstdc++"}
#: Namespace of operators -> the package whose compiled extension registers them.
OPERATOR_NAMESPACES = {
    "npu": "torch-npu",
    "_C_ascend": "vllm-ascend",
    "_C": "vllm",
    "_moe_C": "vllm",
    "_C_cache_ops": "vllm",
    "vllm": "vllm",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
}
#: Packages of torch name their libraries after themselves.
_OWN_LIBRARY = re.compile(r"^lib(?P<package>torch[a-z]+)\.so")
_NESTED = re.compile(r"^_ZT?[VIS]?N[VK]*")
_PLAIN = re.compile(r"^_Z(?=\d)")


def package_of_import(name: str) -> str:
    """The package on the index that has the module `name`."""
    top = name.partition(".")[0]
    return IMPORTED_AS.get(top, str(canonicalize_name(top)))


def package_of_file(file: str) -> str:
    """The package that a source file or library belongs to, "" if its path does not tell.

    A path of an installed package names it. In a checkout, the first folder that is the import name of a
    known package is used.
    """
    installed = INSTALLED.search(file)
    if installed:
        return package_of_import(installed["top"])
    folders = file.split("/")[:-1]
    return next((package_of_import(folder) for folder in folders if folder in CHECKED_OUT), "")


def package_of_library(path: str) -> str:
    """The package or system that a shared library belongs to, "" if its name and path do not tell."""
    name = path.rpartition("/")[2]
    known = next((giver for pattern, giver in LIBRARIES if pattern.match(name)), "")
    own = _OWN_LIBRARY.match(name)
    return known or package_of_file(path) or (own["package"] if own else "")


def demangled(symbol: str) -> str:
    """The qualified name in a symbol of C++ (Itanium ABI), without parameters; other symbols unchanged.

    Source: itanium-cxx-abi.github.io, section 5.1.
    """
    start = _NESTED.match(symbol) or _PLAIN.match(symbol)
    if not start:
        return symbol
    parts, position = [], start.end()
    while found := re.compile(r"\d{1,3}").match(symbol, position):
        end = found.end() + int(found[0])
        parts.append(symbol[found.end() : end])
        position = end
        if start.re is _PLAIN or len(parts) > 20:
            break
    return "::".join(parts) or symbol


def giver_of(symbol: str) -> str:
    """The package or system that should define a symbol, "" if its name does not tell."""
    system = SYSTEM_LIBRARIES.get(symbol.partition("_")[0])
    name = demangled(symbol)
    return system or next((giver for pattern, giver in GIVERS if pattern.search(name)), "")
