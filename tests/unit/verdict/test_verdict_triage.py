import gc
import io
import json
import re

import pytest
from healthy_logs import healthy_log
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import InputError
from harness.verdict.triage.catalogue import catalogue_with, load_catalogue, shipped_catalogue
from harness.verdict.triage.code_tables import acl_table, cann_table
from harness.verdict.triage.diagnosis import cluster, triage, triage_file, triage_text
from harness.verdict.triage.literal_search import NeedleFinder
from harness.verdict.triage.log_blocks import BLOCK_BYTES as CHUNK_BYTES
from harness.verdict.triage.log_line import parse_line, shown
from harness.verdict.triage.log_scan import LINE_BYTES, MANY

CATALOGUE = shipped_catalogue()
SIGNATURES = {signature.id: signature for signature in CATALOGUE.signatures}


def ids(log):
    return [finding.id for finding in triage_text(log if isinstance(log, bytes) else log.encode()).findings]


@pytest.mark.parametrize("signature", CATALOGUE.signatures, ids=lambda signature: signature.id)
def test_a_fixture_is_recognised_as_itself_and_nothing_else(signature):
    assert [found.id for found in CATALOGUE.matching(signature.example)] == [signature.id], (
        f"the pattern of another signature matches the example of {signature.id}: make that pattern narrower"
    )
    (found,) = triage_text(signature.example.encode()).findings
    assert found.id == signature.id or (found.derived and yields(signature))


def yields(signature) -> bool:
    """Whether a derived cause takes its place: a symptom, or a suspicion about versions."""
    return signature.role == "symptom" or signature.area == "skew"


def test_every_entry_says_why_what_to_do_and_who_says_so():
    assert len(CATALOGUE.signatures) >= 76
    assert len(CATALOGUE.metrics) == 9
    for signature in CATALOGUE.signatures:
        assert signature.cause
        assert signature.remedy
        assert signature.affects
        assert signature.sources


@pytest.mark.parametrize("signature", CATALOGUE.signatures, ids=lambda signature: signature.id)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whatever_a_pattern_matches_holds_one_of_its_needles(signature, data):
    pattern = re.compile(signature.pattern, re.ASCII)
    text = data.draw(st.from_regex(pattern, alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
    assert any(needle in text for needle in signature.needles), (
        f"{signature.id}: the pattern matches {text!r}, which contains no needle: shorten or add a needle"
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_log_matches_nothing(seed):
    found = triage_text(healthy_log(1_000_000, seed))
    assert found.findings == ()
    assert found.root is None


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 3 * CHUNK_BYTES),
    st.sampled_from(sorted(SIGNATURES)),
    st.sampled_from(
        [b"", b"\x1b[36m(WorkerDict pid=77, ip=10.0.0.1)\x1b[0m ", b"[rank3]: ", b"2026-11-20T08:00:00.123Z "]
    ),
)
def test_a_failure_is_found_wherever_it_stands(before, name, prefix):
    text = SIGNATURES[name].example.encode()
    log = healthy_log(before)[: before or None].replace(b"training/global_step", b"training/step")
    log = log[: log.rfind(b"\n") + 1]
    found = triage_text(log + prefix + text + b"\n" + b"shutting down\n" * 3)
    [finding] = found.findings
    assert finding.id == name or (finding.derived and yields(SIGNATURES[name]))
    assert found.findings[0].line == log.count(b"\n") + 1
    if b"rank3" in prefix:
        assert 3 in found.findings[0].ranks


ONE_STEP = """\
Error executing job with overrides: ['algorithm.adv_estimator=grpo']
Traceback (most recent call last):
  File "/home/a/verl/recipe/one_step_off_policy/main_ppo.py", line 230, in main
    run_ppo(config, task_runner_class=OneStepTaskRunner)
  File "/home/a/lib/python3.10/site-packages/ray/_private/worker.py", line 2967, in get
    values, debugger_breakpoint = worker.get_objects(
ray.exceptions.RayTaskError({kind}): ray::OneStepTaskRunner.run() (pid=288089, ip=172.16.0.134, actor_id=6e88, repr=<main_ppo.OneStepTaskRunner object at 0xffe17414cf40>)
  File "/home/a/verl/recipe/one_step_off_policy/ray_trainer.py", line 265, in _create_weight_sync_group
    collective.create_collective_group(
{kind}: {message}
"""


def test_the_error_of_a_worker_is_taken_out_of_its_wrapping():
    found = triage_text(ONE_STEP.format(kind="RuntimeError", message="NCCL is not available").encode())
    assert found.known
    assert found.root.id == "nccl"
    found = triage_text(ONE_STEP.format(kind="ValueError", message="batch of 17 is odd").encode())
    assert not found.known
    assert found.root.text == "ValueError: batch of 17 is odd"
    assert found.root.failure.stack == (
        "verl/recipe/one_step_off_policy/ray_trainer.py:_create_weight_sync_group",
    )


def worker(number, kind, message, function="step"):
    head = f"\x1b[36m(WorkerDict pid={number})\x1b[0m "
    lines = [
        "Traceback (most recent call last):",
        f'  File "/x{number}/site-packages/verl/workers/actor.py", line {100 + number}, in {function}',
        "    loss.backward()",
        f"{kind}: {message}",
    ]
    return [head + line for line in lines]


def test_interleaved_processes_are_kept_apart_and_ranks_are_counted_once():
    logs = [
        worker(number, "RuntimeError", f"bad tile {number} of 8 at 0x{number:08x}") for number in range(8)
    ]
    mixed = "\n".join(line for lines in zip(*logs, strict=True) for line in lines)
    found = triage_text(mixed.encode())
    assert len(found.findings) == 1
    assert len(found.root.processes) == 8
    assert found.root.count == 8


def test_the_first_failure_outranks_those_who_waited_for_it():
    lines = [
        *worker(1, "ValueError", "this one failed first"),
        *[f"[rank{rank}]: EI0006: Getting socket times out" for rank in range(2, 8)],
        "[c10d] The client socket has timed out after 1800000ms while trying to connect to (10.0.0.1, 1)",
    ]
    found = triage_text("\n".join(lines).encode())
    assert not found.known
    assert found.root.text == "ValueError: this one failed first"
    assert [finding.id for finding in found.findings[1:]] == ["hccl-ei0006", "store-timeout"]
    assert found.findings[1].ranks == tuple(range(2, 8))


def test_who_only_reports_another_failure_is_not_its_cause_even_when_it_comes_first():
    lines = [
        *worker(1, "subprocess.CalledProcessError", "Command 'train' returned 1"),
        *worker(2, "ValueError", "tile 17 is odd", "other"),
    ]
    found = triage_text("\n".join(lines).encode())
    assert found.root.text == "ValueError: tile 17 is odd"
    assert [finding.failure.secondary for finding in found.findings] == [False, True]


def test_a_log_that_ends_within_a_wrapped_error_tells_the_wrapping():
    whole = ONE_STEP.format(kind="ValueError", message="never printed")
    wrapping = next(line for line in whole.splitlines() if line.startswith("ray.exceptions."))
    cut = whole[: whole.index(wrapping) + len(wrapping)] + "\n"
    assert triage_text(cut.encode()).root.text == wrapping


def test_a_file_of_the_checkout_is_read_on_top_of_the_catalogue_where_there_is_one(tmp_path):
    file = tmp_path / "signatures.yaml"
    assert catalogue_with(file).signatures == shipped_catalogue().signatures
    file.write_text(
        "signatures: [{id: our-own, pattern: 'tile \\d+ is odd', needles: [' is odd'], example: tile 17 is odd,"
        " cause: x, remedy: y, sources: [z]}]"
    )
    assert [one.id for one in catalogue_with(file).signatures][-1] == "our-own"


def test_a_symptom_alone_is_said_to_be_no_explanation():
    found = triage_text(b"EI0006: Getting socket times out\n")
    assert found.root.id == "hccl-ei0006"
    assert not found.known


def test_what_a_job_survived_did_not_end_it():
    lines = [
        *worker(
            1,
            "ImportError",
            "cannot import name 'index_first_axis' from 'transformers.integrations.npu_flash_attention'",
        ),
        "step:1 - actor/loss:0.1 - training/global_step:1",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB",
    ]
    found = triage_text("\n".join(lines).encode())
    assert found.root.id == "npu-oom"
    assert found.findings[-1].survived
    assert any("training continued" in note for note in found.notes)


def test_a_caught_error_does_not_outrank_the_one_the_job_died_of():
    lines = [*worker(1, "KeyError", "'optional'", "probe"), *worker(1, "RuntimeError", "NPU out of memory")]
    assert triage_text("\n".join(lines).encode()).root.id == "npu-oom"


def test_repetitions_that_ray_left_out_are_counted():
    found = triage_text(b"(WorkerDict pid=9) NCCL is not available [repeated 7x across cluster]\n")
    assert found.root.count == 8


def test_a_log_without_anything_known_shows_the_line_that_reads_like_an_error():
    found = triage_text(b"hello\nld: cannot find -lascendcl\nbye\n")
    assert not found.known
    assert found.root.line == 2
    assert triage_text(b"all is well\n").root is None
    assert triage_text(b"").root is None


def test_a_crash_without_a_traceback_is_a_failure():
    found = triage_text(b"Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n")
    assert found.root
    assert not found.known


def test_escapes_nuls_endless_lines_and_other_encodings_do_not_hide_a_failure():
    text = "RuntimeError: NCCL is not available\n"
    assert ids(b"\x1b[31mRuntimeError\x1b[0m: NCCL is not available\n") == ["nccl"]
    assert ids(text.encode("utf-16-le")) == ["nccl"]
    assert ids("日本語 报错 ".encode("gb18030") + text.encode()) == ["nccl"]
    assert ids(b"x" * 10_000_000 + text.encode()) == ["nccl"]
    assert ids(b"x" * 5_000_000 + text.encode()[:-1] + b"y" * 5_000_000) == ["nccl"]
    assert ids(b"\r 10%|#  |\r 20%|## | " + text.encode()) == ["nccl"]


@pytest.mark.parametrize("offset", [-60, -20, -9, -1, 0])
def test_a_failure_in_an_endless_line_is_found_across_the_pieces_it_is_read_in(offset):
    before = b"x" * (CHUNK_BYTES + offset)
    assert ids(before + b" NCCL is not available " + b"y" * CHUNK_BYTES) == ["nccl"]


@given(st.binary(max_size=400), st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_no_bytes_break_it_or_hide_a_failure_on_a_line_of_its_own(before, after):
    log = before + b"\nRuntimeError: NPU out of memory\n" + after
    assert "npu-oom" in ids(log)
    json.dumps(triage_text(log).to_json())


def test_what_repeats_itself_is_counted_up_to_a_point_and_said():
    found = triage_text(b"NCCL is not available\n" * (MANY * 3))
    assert found.root.count >= MANY
    assert found.notes


@given(
    st.lists(st.binary(min_size=7, max_size=30), min_size=1, max_size=20), st.binary(max_size=300), st.data()
)
@settings(max_examples=100, deadline=None)
def test_the_finder_agrees_with_a_plain_search(needles, noise, data):
    pieces = data.draw(st.lists(st.one_of(st.sampled_from(needles), st.binary(max_size=9)), max_size=20))
    text = noise + b"".join(pieces)
    expected = sorted(
        (start, number)
        for number, needle in enumerate(needles)
        for start in range(len(text))
        if text.startswith(needle, start)
    )
    assert sorted(map(tuple, NeedleFinder(needles).find(text))) == expected


def test_a_needle_too_short_to_be_found_everywhere_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        NeedleFinder([b"EI0006"])


@pytest.mark.parametrize(
    "line",
    [
        "::set-output name=x::y",
        "  ::error::boo",
        "a ##[command]rm",
        "x\x1b]8;;http://e\x07y",
        "a\x00b\u202eb",
    ],
)
def test_an_excerpt_commands_no_runner_and_no_terminal(line):
    text = shown(line)
    assert not text.lstrip().startswith("::")
    assert "##[" not in text
    assert text.isprintable()


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Bearer abcdef0123456789",
        "WANDB_API_KEY=abcdef0123456789",
        '"password": "abcdef0123456789"',
        "https://user:abcdef0123456789@example.org/x",
        "token hf_abcdef0123456789",
    ],
)
def test_an_excerpt_holds_no_secret(line):
    assert "abcdef0123456789" not in shown(line)


@given(st.text(max_size=200))
def test_every_excerpt_is_one_printable_line(text):
    assert "\n" not in shown(text)
    assert "\x1b" not in shown(text)


def test_prefixes_name_process_and_rank():
    line = parse_line(
        b"2026-11-20T08:00:00Z \x1b[36m(Worker_TP3 pid=12, ip=10.0.0.2)\x1b[0m ERROR 11-20 08:00:00 [core.py:708]   File"
    )
    assert (line.process, line.rank, line.body) == ("Worker_TP3:12@10.0.0.2", 3, "  File")


def test_unknown_failures_of_several_cells_are_one_cluster_whatever_their_lines_and_folders():
    logs = {
        f"cell{number}": triage_text("\n".join(worker(number, "RuntimeError", f"bad tile {number}")).encode())
        for number in range(5)
    }
    logs["other"] = triage_text("\n".join(worker(1, "RuntimeError", "bad tile 1", "generate")).encode())
    logs["known"] = triage_text(b"NCCL is not available")
    found = cluster(logs)
    assert [len(one.places) for one in found] == [5, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("signatures: [", "cannot be read"),
        ("[1, 2]", "a catalogue must be a mapping"),
        ("", "a catalogue must be a mapping"),
        ("signatures: 3", "signatures"),
        (
            "signatures: [{id: a-b, pattern: 'abcdefg.*', needles: [abcdefg], example: abcdefg, cause: x, remedy: y, sources: [z]}]",
            "slow on long lines",
        ),
        (
            "signatures: [{id: a-b, pattern: '(', needles: [abcdefg], example: abcdefg, cause: x, remedy: y, sources: [z]}]",
            "regular",
        ),
        (
            "signatures: [{id: a-b, pattern: abcdefg, needles: [abc], example: abcdefg, cause: x, remedy: y, sources: [z]}]",
            "shorter",
        ),
        (
            "signatures: [{id: a-b, pattern: abcdefg, needles: [abcdefgh], example: abcdefg, cause: x, remedy: y, sources: [z]}]",
            "needles",
        ),
        (
            "signatures: [{id: a-b, pattern: abcdefg, needles: [abcdefg], example: other, cause: x, remedy: y, sources: [z]}]",
            "example",
        ),
    ],
)
def test_a_bad_catalogue_is_an_input_error(tmp_path, text, says):
    file = tmp_path / "signatures.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        load_catalogue([file])


def test_a_missing_log_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        triage_file(tmp_path / "none.log")


def test_memory_does_not_grow_with_the_log():
    import tracemalloc

    class Endless(io.RawIOBase):
        def __init__(self, blocks):
            self.blocks, self.block = blocks, healthy_log(LINE_BYTES * 16)[:CHUNK_BYTES]

        def read(self, _size=-1):
            self.blocks -= 1
            return self.block if self.blocks >= 0 else b""

    def peak(blocks):
        gc.collect()
        tracemalloc.start()
        triage(Endless(blocks), CATALOGUE)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(60) < 1.5 * peak(6)


COMPILEOPT = "RuntimeError: NPU function error: at_npu::native::AclSetCompileopt(x), error code is 500001"


@pytest.mark.parametrize(("numpy", "known"), [("2.0.2", True), ("1.26.4", False), ("", False)])
def test_versions_in_the_log_tell_which_cause_a_symptom_has(numpy, known):
    """A signature can name the versions of a package that explain its line."""
    found = triage_text(COMPILEOPT.encode(), versions={"numpy": numpy} if numpy else {})
    assert found.known is known
    assert found.root.id == ("acl-compileopt-numpy" if known else "acl-compileopt")


TRITON = """\
ERROR 03-18 08:08:14 [core.py:1100]     raise MLIRCompilationError(stage_name, error_detail)
ERROR 03-18 08:08:14 [core.py:1100] triton.compiler.errors.MLIRCompilationError:
ERROR 03-18 08:08:14 [core.py:1100] ///------------------[ERROR][Triton][BEG]------------------
ERROR 03-18 08:08:14 [core.py:1100] [ConvertLinalgRToBinary] encounters error:
ERROR 03-18 08:08:14 [core.py:1100] bishengir-compile: the input is not known
"""


def test_a_message_of_several_lines_after_a_cut_traceback_is_read_to_its_end():
    """A line of code is no message, and a message goes on while its lines end with a colon."""
    root = triage_text(TRITON.encode()).root
    assert "raise" not in root.text
    assert "bishengir-compile: the input is not known" in root.text


#: Words of a cause that its text does not prove.
GUESSES = re.compile(
    r"\b(?:most often|usually|often|probably|perhaps|likely|might|for example|one known reason)\b"
)


def test_a_cause_says_only_what_its_text_proves():
    said = {one.id: one.cause for one in CATALOGUE.signatures if one.role == "cause"}
    said |= {
        place.id: place.cause
        for one in CATALOGUE.signatures
        for place in (*one.places, *one.installed)
        if getattr(place, "role", "cause") == "cause"
    }
    tables = (acl_table(), cann_table())
    said |= {group.name: group.cause for table in tables for group in table.groups if group.role == "cause"}
    guesses = [f"{name}: {cause}" for name, cause in said.items() if GUESSES.search(cause)]
    assert not guesses, "make these symptoms, or leave the guess to the remedy"


RAISED_AGAIN = """\
Traceback (most recent call last):
  File "/opt/lib/python3.10/site-packages/torch/_dynamo/eval_frame.py", line 749, in compile_wrapper
    raise e.remove_dynamo_frames() from None
{message}
"""


def test_a_line_of_source_that_raises_another_exception_is_no_cause():
    found = triage_text(RAISED_AGAIN.format(message="RuntimeError: batch of 17 is odd").encode())
    assert not found.known
    assert found.root.text == "RuntimeError: batch of 17 is odd"
    assert triage_text(RAISED_AGAIN.format(message="").encode()).root.id == "compile-inductor"
