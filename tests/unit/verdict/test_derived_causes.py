"""Causes that are computed from versions, published rules and symbols."""

import pytest

from harness.verdict.triage.derived.failed_use import Expected, failed_use_of
from harness.verdict.triage.derived.logged_versions import LoggedVersions
from harness.verdict.triage.derived.package_names import demangled, giver_of, package_of_file
from harness.verdict.triage.diagnosis import triage_text

SYMBOL = "_ZN7c10_npu3acl20AclrtPeekAtLastErrorE17aclrtLastErrLevel"
TRACE = """Traceback (most recent call last):
  File "/vllm-workspace/vllm-ascend/vllm_ascend/worker/x.py", line 3, in f
    from vllm.absent_module import y
ModuleNotFoundError: No module named 'vllm.absent_module'
"""
USES = {
    "TypeError: A.b() got an unexpected keyword argument 'c'": (Expected.KEYWORD, "A.b", ("c",)),
    "TypeError: A.b() missing 2 required positional arguments: 'c' and 'd'": (
        Expected.ARGUMENT,
        "A.b",
        ("c", "d"),
    ),
    "TypeError: A.b() missing required positional argument: c": (Expected.ARGUMENT, "A.b", ("c",)),
    "AttributeError: Can't get attribute 'B' on <module 'vllm.a' from '/x/vllm/a.py'>": (
        Expected.ATTRIBUTE,
        "vllm.a",
        ("B",),
    ),
    "TypeError: A.b() takes from 2 to 3 positional arguments but 5 were given": (
        Expected.POSITIONAL,
        "A.b",
        ("5",),
    ),
    "AttributeError: 'A' object has no attribute 'b'": (Expected.ATTRIBUTE, "A", ("b",)),
    "ImportError: cannot import name 'b' from 'vllm.a' (/x/vllm/a.py)": (Expected.NAME, "vllm.a", ("b",)),
    f"OSError: /a/b.so: undefined symbol: {SYMBOL}": (Expected.SYMBOL, "/a/b.so", (SYMBOL,)),
    "ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /a.so)": (
        Expected.LIBRARY_VERSION,
        "/lib/libc.so.6",
        ("GLIBC_2.38",),
    ),
    "TypeError: Can't instantiate abstract class W with abstract methods a, b": (
        Expected.ABSTRACT_METHOD,
        "W",
        ("a", "b"),
    ),
}


@pytest.mark.parametrize("text", USES)
def test_a_message_says_what_was_expected_of_whom(text):
    use = failed_use_of(text)
    assert use is not None
    assert (use.expected, use.owner, use.names) == USES[text]


def test_other_messages_say_nothing():
    assert failed_use_of("ValueError: tile 17 is odd") is None


def test_symbols_name_who_defines_them():
    assert demangled(SYMBOL) == "c10_npu::acl::AclrtPeekAtLastError"
    assert giver_of(SYMBOL) == "torch-npu"
    assert giver_of("_ZN3atb15CreateOperationINS_5infer") == "NNAL"
    assert giver_of("GLIBC_2.38") == "glibc"
    assert package_of_file("/vllm-workspace/vllm-ascend/vllm_ascend/worker/x.py") == "vllm-ascend"


def test_versions_are_those_that_were_installed_or_running():
    log = """PyTorch version: 2.5.1+cpu
[pip3] torch==2.5.1
vLLM Ascend Version: 0.9.1rc1
"transformers_version": "4.41.2",
Initializing a V1 LLM engine (v0.9.1) with config
Package  Version
-------- -------
ray      2.46.0
"""
    versions = LoggedVersions()
    for number, line in enumerate(log.splitlines(), start=1):
        versions.read(line, number)
    found = {name: one.version for name, one in versions.known().items()}
    assert found == {"torch": "2.5.1+cpu", "vllm-ascend": "0.9.1rc1", "vllm": "0.9.1", "ray": "2.46.0"}


def test_a_broken_published_rule_is_a_proven_cause():
    log = "\nvllm==0.9.1\nvllm-ascend==0.8.5rc1\n" + TRACE
    root = triage_text(log.encode()).root
    assert root.derived
    assert root.derived.degree == "proven"
    assert "vllm_ascend 0.8.5rc1 is published with vllm 0.8.5.post1, not 0.9.1" in root.derived.sentence


def test_without_versions_nothing_is_proven():
    root = triage_text(TRACE.encode()).root
    assert root.derived is None or root.derived.degree != "proven"


def test_versions_that_go_together_are_no_cause():
    root = triage_text(("vllm==0.9.1\nvllm-ascend==0.9.1rc1\n" + TRACE).encode()).root
    assert root.derived is None or root.derived.degree != "proven"


def test_a_symbol_that_nobody_defines_is_proven_by_the_message_which_leaves_two_reasons():
    root = triage_text(f"OSError: /x/site-packages/dlinfer/a.so: undefined symbol: {SYMBOL}\n".encode()).root
    assert root.derived
    assert root.derived.degree == "proven"
    assert root.derived.is_open
    assert (
        "was built for another version or build of torch-npu, or torch-npu is not loaded"
        in root.derived.sentence
    )
    # A library without a package may belong to the one that defines the symbol.
    root = triage_text(f"OSError: /x/a.so: undefined symbol: {SYMBOL}\n".encode()).root
    assert root.derived is None or root.derived.degree == "symptom"


def test_what_cannot_be_inspected_is_supported():
    failed = "ValueError: Model architectures ['Qwen3ForCausalLM'] {}\n"
    found = triage_text(
        failed.format("failed to be inspected. Please check the logs for more details.").encode()
    )
    assert not found.known
    text = failed.format("are not supported for now. Supported architectures: dict_keys([])")
    root = triage_text(text.encode()).root
    assert root.derived.is_open
    assert root.signature.cause.startswith("vllm has the model class `Qwen3ForCausalLM` in vllm from 0.8.")


def test_a_key_alone_is_not_known_to_be_a_model_type():
    assert not triage_text(b"KeyError: 'qwen3_next'\n").known
    frame = '  File "/x/site-packages/transformers/models/auto/configuration_auto.py", line 1, in from_pretrained\n'
    trace = f"Traceback (most recent call last):\n{frame}    config_class = CONFIG_MAPPING[x]\n"
    assert triage_text(f"{trace}KeyError: 'qwen3_next'\n".encode()).known


UV = """  x No solution found when resolving dependencies:
  `-> Because foo==1.2 depends on torch==2.5.1 and you require torch==2.6.0, we can conclude that
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "The conflict is caused by:\n    foo 1.2 depends on torch==2.5.1\nERROR: ResolutionImpossible: x\n",
            "foo 1.2 requires torch==2.5.1, and another requirement excludes it",
        ),
        (
            "foo 5.0 requires numpy>=2, but you have numpy 1.26.4 which is incompatible.\n",
            "foo 5.0 requires numpy>=2, and numpy 1.26.4 is installed",
        ),
        (
            UV,
            "foo 1.2 requires torch==2.5.1, and another requirement excludes it",
        ),
        # 0.23.0 is what the advice about numpy 2 names, so that advice would be wrong here.
        (
            "vllm-ascend 0.23.0 requires transformers==5.5.4, but you have transformers 5.10.4.\n",
            "vllm-ascend 0.23.0 requires transformers==5.5.4, and transformers 5.10.4 is installed",
        ),
    ],
)
def test_what_an_installer_says_about_two_packages_is_a_cause(text, sentence):
    found = triage_text(text.encode())
    assert found.known
    assert found.root.signature.cause == sentence
    assert found.root.derived.degree == "proven"


COMPARED = {
    "pkg_resources.VersionConflict: (numpy 2.2.4 (/x/site-packages), Requirement.parse('numpy<2.0.0'))": (
        "needs numpy<2.0.0, and numpy 2.2.4 is"
    ),
    "pkg_resources.ContextualVersionConflict: (packaging 23.0 (/x), Requirement.parse('packaging>=24'), {'vllm'})": (
        "vllm needs packaging>=24, and packaging 23.0 is"
    ),
    "ImportError: Requires Flash-Attention version >=2.7.1,<=2.8.2 but got 2.8.3.": (
        "the program that reports it needs Flash-Attention version >=2.7.1,<=2.8.2, and Flash-Attention 2.8.3 is"
    ),
    "ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this module, but found "
    "tokenizers==0.20.3.": "needs tokenizers>=0.21,<0.22, and tokenizers==0.20.3 is",
    "ImportError: Found an incompatible version of torchao. Found version 0.12.0, but only versions above 0.16.0 "
    "are supported": "needs torchao above 0.16.0, and torchao 0.12.0 is",
    "ImportError: Numba needs NumPy 2.2 or less. Got NumPy 2.3.": "Numba needs NumPy 2.2 or less, and NumPy 2.3 is",
    "Exception: flashinfer_python is installed with version 0.2.3, which is less than the minimum required version "
    "0.2.5. Please reinstall": "needs flashinfer_python >=0.2.5, and flashinfer_python 0.2.3 is",
}


@pytest.mark.parametrize("text", COMPARED)
def test_a_program_that_compares_versions_has_told_the_cause(text):
    root = triage_text(f"{text}\n".encode()).root
    assert f"{COMPARED[text]} installed" in root.signature.cause
    assert root.derived.degree == "proven"


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: this job requires 4 cards but got 2",
        "ValueError: a batch of 8 is required for this test, but found 6",
        "AssertionError: the mask requires shape (4, 8), but got (4, 7)",
    ],
)
def test_what_is_no_version_is_not_compared(text):
    use = failed_use_of(text)
    assert use is None or use.expected is not Expected.VERSION


def test_missing_metadata_names_the_package_and_what_is_left():
    text = "importlib.metadata.PackageNotFoundError: No package metadata was found for {}\n"
    root = triage_text(text.format("megatron-core").encode()).root
    assert root.signature.cause.startswith("megatron-core is not installed for this Python, although")
    assert root.derived.is_open
    # Of flash_attn a signature tells more.
    assert triage_text(text.format("flash_attn").encode()).root.id == "fa-metadata"


def test_a_missing_top_level_module_is_not_installed_or_another_python_runs():
    trace = '  File "/x/site-packages/vllm_ascend/a.py", line 3, in <module>\n    import torch_npu\n'
    root = triage_text(f"{trace}ModuleNotFoundError: No module named 'torch_npu'\n".encode()).root
    assert root.signature.cause.startswith(
        "this Python finds no module `torch_npu`, which vllm-ascend imports: its"
    )
    assert root.derived.is_open
    # A module that something else hides was found, and a module in a package is missing for its version.
    for text in ("No module named 'ray.air'; 'ray' is not a package", "No module named 'vllm.absent'"):
        root = triage_text(f"ModuleNotFoundError: {text}\n".encode()).root
        assert "finds no module" not in root.signature.cause


def test_a_function_that_cann_lacks_is_a_symptom():
    found = triage_text(b"RuntimeError: Failed to find function aclmdlRICaptureBegin\n")
    assert found.root.id == "acl-function-missing"
    assert not found.known


@pytest.mark.parametrize(
    "said",
    [
        "verl depends on torch, and ray 2.10 is required",
        "That is slower. Because verl depends on torch, we wait.",
    ],
)
def test_a_sentence_about_dependencies_is_no_failure(said):
    text = f"step:1 - training/global_step:1\nThe answer: {said}\n".encode()
    assert triage_text(text).root is None


def test_an_installer_whose_lines_are_wrapped_failed_without_a_known_cause():
    found = triage_text(
        b"  x No solution found when resolving dependencies:\n  `-> Because foo==1.2 depends on\n"
    )
    assert not found.is_clean
    assert not found.known


def test_a_key_that_a_program_reads_is_named_without_guessing_the_program():
    root = triage_text(b"omegaconf.errors.ConfigAttributeError: Key 'min_lr' is not in struct\n").root
    assert root.id == "config-key-read"
    assert root.derived.degree == "proven"
    assert "the program reads the key `min_lr`" in root.signature.cause
    assert "verl" not in root.signature.cause + root.signature.remedy


def test_a_value_in_which_the_configuration_reads_a_key_is_named():
    text = (
        "omegaconf.errors.InterpolationResolutionError: ConfigTypeError raised while resolving interpolation: "
        "Error trying to access model.attention.size: node model.attention is not a container and thus cannot "
        "contain size"
    )
    root = triage_text(text.encode()).root
    assert root.derived.degree == "proven"
    assert "reads `size` in `model.attention`, which is a single value" in root.signature.cause
    assert "`model/attention=NAME`" in root.signature.remedy


def test_a_library_of_torch_is_named_after_its_package():
    text = "OSError: libtorchtext.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs"
    root = triage_text(text.encode()).root
    assert root.derived.packages == ("torch", "torchtext")
    assert "was built for another version or build of torch" in root.signature.cause


def test_a_full_stop_ends_no_name():
    use = failed_use_of("Qwen2Tokenizer has no attribute all_special_tokens_extended.")
    assert (use.owner, use.names) == ("Qwen2Tokenizer", ("all_special_tokens_extended",))


REFUSED = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for {}\nbackend\n"
    "  Input should be 'ray' or 'mp' [type=literal_error, input_value='x', input_type=str]\n"
)


def test_a_value_that_a_configuration_refuses_is_named_with_its_field_and_what_it_takes():
    root = triage_text(REFUSED.format("ParallelConfig").encode()).root
    assert root.derived.degree == "proven"
    assert root.signature.area == "config"
    said = "`ParallelConfig` refuses the value 'x' of its field `backend`: it should be 'ray' or 'mp'"
    assert root.signature.cause == said


def test_data_that_a_model_refuses_is_no_setting():
    root = triage_text(REFUSED.format("ChatCompletionResponse").encode()).root
    assert root.derived is None
