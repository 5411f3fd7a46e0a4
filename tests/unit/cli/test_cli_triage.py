import json

import pytest
import yaml
from click.testing import CliRunner

from harness.cli.app import main
from harness.cli.triage_command import command
from harness.settings import load_settings

UNKNOWN = 'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    g()\nValueError: tile 17 of the lookup table is odd\n'


@pytest.fixture
def triage(tmp_path):
    def run(*arguments, code=0, stdin=None):
        result = CliRunner().invoke(
            command,
            [str(one) for one in arguments],
            obj=load_settings({}, {}, tmp_path),
            input=stdin,
            standalone_mode=False,
        )
        if result.exception is not None:
            raise result.exception
        assert result.return_value == code, result.output
        return result.output

    return run


@pytest.fixture
def log(tmp_path):
    def write(name, text):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def test_a_known_failure_is_named_with_cause_remedy_and_source(triage, log):
    output = triage(log("a.log", "hello\nRuntimeError: NCCL is not available\n"), code=1)
    assert "root cause: nccl, line 2" in output
    assert "do:" in output
    assert "see:" in output


def test_a_log_is_named_only_where_there_are_several(triage, log):
    one, other = (log(name, "RuntimeError: NCCL is not available\n") for name in ("one.log", "other.log"))
    assert "one.log" not in triage(one, code=1)
    both = triage(one, other, code=1)
    assert str(one) in both
    assert str(other) in both


def test_json_lists_id_line_and_rank(triage, log):
    found = json.loads(
        triage(log("a.log", "[rank3]: RuntimeError: NCCL is not available\n"), "--json", code=1)
    )
    assert found["schema"] == {"name": "npu-matrix.triage", "version": 1}
    assert [(one["id"], one["line"], one["rank"]) for one in found["matches"]] == [("nccl", 1, 3)]


def test_an_unknown_failure_is_said_to_be_unknown_and_is_code_1(triage, log):
    output = triage(log("a.log", UNKNOWN), code=1)
    assert "unknown failure: unknown-" in output
    assert "ValueError: tile 17" in output


def test_several_logs_with_the_same_unknown_failure_are_grouped(triage, log):
    logs = [log(f"{number}.log", UNKNOWN.replace("17", str(number))) for number in range(3)]
    assert "the same unknown failure" in triage(*logs, code=1)
    assert len(json.loads(triage(*logs, "--json", code=1))["clusters"][0]["logs"]) == 3


def test_metrics_are_held_against_a_reference(triage, log):
    def steps(shift):
        return "".join(
            f"step:{step} - critic/rewards/mean:{0.5 + shift} - training/global_step:{step}\n"
            for step in range(1, 16)
        )

    npu, gpu = log("npu.log", steps(-0.2)), log("gpu.log", steps(0))
    assert "no failure found" in triage(npu)
    output = triage(npu, "--reference", gpu, code=1)
    assert "root cause: m-reward-npu-gpu, line 5" in output
    assert "no failure found" in triage(gpu, "--reference", gpu)
    with pytest.raises(Exception, match="no training step"):
        triage(npu, "--reference", log("empty.log", "hello\n"))


def test_a_learned_failure_is_known_from_then_on(triage, log, tmp_path):
    file = log("a.log", UNKNOWN)
    said = [
        "--id",
        "odd-tile",
        "--cause",
        "odd: it is",
        "--remedy",
        "even # it",
        "--source",
        "https://example.org/1",
    ]
    assert "odd-tile" in triage(file, "--learn", *said)
    (entry,) = yaml.safe_load((tmp_path / "signatures.yaml").read_text())["signatures"]
    assert entry["remedy"] == "even # it"
    assert "root cause: odd-tile" in triage(log("b.log", UNKNOWN.replace("17", "4")), code=1)
    with pytest.raises(Exception, match="as 'odd-tile'"):
        triage(file, "--learn", *said)


def test_learning_keeps_comments_and_refuses_what_it_cannot_add_to(triage, log, tmp_path):
    own = tmp_path / "signatures.yaml"
    own.write_text("# ours\nsignatures:\n")
    said = ["--id", "odd-tile", "--cause", "x", "--remedy", "y", "--source", "z"]
    with pytest.raises(Exception, match=r"signatures"):
        triage(log("a.log", UNKNOWN), "--learn", *said)
    own.write_text("# ours\nsignatures: []\n")
    with pytest.raises(Exception, match="cannot be added"):
        triage(log("a.log", UNKNOWN), "--learn", *said)
    assert own.read_text() == "# ours\nsignatures: []\n"


def test_an_empty_log_and_one_without_an_end_are_no_success(triage, log):
    assert "the log is empty" in triage(log("a.log", ""), code=1)
    assert "neither progress nor the end" in triage(log("b.log", "loading\n"), code=1)
    step = "step:1 - actor/entropy:0.5 - training/global_step:1\n"
    assert "no failure found" in triage(log("c.log", step))
    cut = triage(log("d.log", f"Total training steps: 9\n{step}"), code=1)
    assert "stops after step 1 of 9" in cut
    ending = json.loads(triage(log("e.log", step), "--json"))["ending"]
    assert ending == {"kind": "working", "step": 1, "steps": 0, "clean": True}


def test_standard_input_and_the_list(triage):
    assert "nccl" in triage("-", stdin=b"NCCL is not available", code=1)
    listed = json.loads(triage("--list", "--json"))
    assert len(listed["signatures"]) >= 76


def test_forged_commands_in_a_log_do_not_reach_a_runner(triage, log):
    output = triage(
        log("a.log", "::set-output name=x::NCCL is not available\n::error::NPU out of memory ##[x]\n"), code=1
    )
    assert not [line for line in output.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_a_missing_log_is_bad_input_without_a_traceback(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["triage", "/nonexistent.log"])
    assert stop.value.code == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_credential_of_this_machine_is_neither_printed_nor_learned(triage, log, monkeypatch):
    monkeypatch.setenv("TEAM_SETTINGS", "canary-0123456789")
    file = log("a.log", UNKNOWN.replace("17", "17 canary-0123456789"))
    assert "canary" not in triage(file, code=1) + triage(file, "--json", code=1)
    described = ["--id", "odd-tile", "--cause", "x", "--remedy", "y", "--source", "z"]
    with pytest.raises(Exception, match="contains a credential"):
        triage(file, "--learn", *described)
