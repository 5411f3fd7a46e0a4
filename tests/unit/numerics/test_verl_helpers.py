"""Small functions of verl that are named if they do not return what they are defined to return."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from harness.numerics.loss import verl_helpers
from harness.numerics.loss.returned_values import returned_without_key
from harness.numerics.loss.verl_helpers import HELPERS, raised_in, watched_helpers


@pytest.fixture
def modules(monkeypatch):
    """`verl.home`, which defines functions, and `verl.user`, which imports and calls them."""
    found = []
    for name in ("verl", "verl.home", "verl.user"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == "verl")
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        found.append(module)

    def masked_sum(values, mask, axis=None):
        return np.where(mask, values, 0.0).sum(axis=axis)

    def masked_mean(values, mask, axis=None):
        return home.masked_sum(values, mask, axis) / mask.sum(axis=axis)

    _, home, user = found
    home.masked_sum = user.masked_sum = masked_sum
    home.masked_mean = user.masked_mean = masked_mean
    helpers = [one for one in HELPERS if one.name in {"masked_sum", "masked_mean"}]
    moved = [replace(one, module="verl.home") for one in helpers]
    monkeypatch.setattr(verl_helpers, "HELPERS", moved)
    return home, user


VALUES, MASK = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1, 1], [1, 0]])


def test_right_functions_are_not_named_and_are_restored(modules):
    _, user = modules
    original = user.masked_mean
    wrong = []
    with watched_helpers(wrong.append):
        assert user.masked_mean(VALUES, MASK) == pytest.approx(2.0)
    assert wrong == []
    assert user.masked_mean is original


def test_a_module_that_cannot_be_imported_is_not_watched(modules, monkeypatch, tmp_path):
    """verl ab070522 on an NPU: padding.py imports what its transformers does not have, and a loss needs none of
    it."""
    _, user = modules
    (tmp_path / "padding_of_verl.py").write_text("from numpy import no_such_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = replace(HELPERS[0], module="padding_of_verl")
    monkeypatch.setattr(verl_helpers, "HELPERS", [broken, *verl_helpers.HELPERS])
    with watched_helpers(lambda _: None):
        assert user.masked_mean(VALUES, MASK) == pytest.approx(2.0)


def test_the_innermost_wrong_function_is_named_first(modules):
    home, user = modules

    def doubled(values, mask, axis=None):
        return 2 * np.where(mask, values, 0.0).sum(axis=axis)

    home.masked_sum = doubled
    wrong = []
    with watched_helpers(wrong.append):
        user.masked_mean(VALUES, MASK)
    assert wrong == [doubled, user.masked_mean]


def test_a_call_that_the_definition_does_not_cover_says_nothing(modules):
    _, user = modules
    wrong = []
    with watched_helpers(wrong.append), pytest.raises(TypeError):
        user.masked_sum(VALUES, MASK, unknown=1)
    assert wrong == []


def test_a_result_without_a_value_is_named(modules):
    home, user = modules

    def nothing(values, mask, axis=None):
        return None

    home.masked_sum = user.masked_sum = nothing
    wrong = []
    with watched_helpers(wrong.append):
        user.masked_sum(VALUES, MASK)
    assert wrong == [nothing]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have no positions")
def test_the_function_is_named_that_returned_a_container_without_a_key(tmp_path):
    (tmp_path / "verl").mkdir()
    file = tmp_path / "verl" / "keys.py"
    file.write_text(
        "class Batch:\n    def __init__(self):\n        self.fields = {}\n"
        "def prepare():\n    return 1, {'one': 1}\n"
        "def advantages():\n    return Batch()\n"
        "def outputs(given):\n    return given['two']\n"
        "def step():\n    _, given = prepare()\n    return outputs(given)\n"
        "def trains():\n    batch = advantages()\n    return batch.fields['advantages']\n"
        "def own():\n    found = {}\n    return found['key']\n"
    )
    space = {"__name__": "verl.keys"}
    exec(compile(file.read_text(), str(file), "exec"), space)

    assert returned_without_key(space["step"]).co_name == "prepare"
    assert returned_without_key(space["trains"]).co_name == "advantages"
    assert returned_without_key(space["own"]) is None
    assert returned_without_key(space["prepare"]) is None
    assert sys.getprofile() is None


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("agg_loss", {"loss_mat": VALUES, "loss_mask": MASK, "loss_agg_mode": "token-mean"}, 2.0),
        ("agg_loss", {"loss_mat": VALUES, "loss_mask": MASK, "loss_agg_mode": "token-sum"}, 6.0),
        ("agg_loss", {"loss_mat": VALUES, "loss_mask": MASK, "loss_agg_mode": "seq-mean-token-mean"}, 2.25),
        ("agg_loss", {"loss_mat": VALUES, "loss_mask": MASK, "loss_agg_mode": "seq-mean-token-sum"}, 3.0),
        (
            "agg_loss",
            {"loss_mat": VALUES, "loss_mask": MASK, "loss_agg_mode": "seq-mean-token-sum-norm"},
            1.5,
        ),
        ("kl_penalty_forward", {"logprob": 1.0, "ref_logprob": 0.5, "kl_penalty": "k1"}, 0.5),
        ("kl_penalty", {"logprob": 1.0, "ref_logprob": 0.5, "kl_penalty": "k2+"}, 0.125),
        ("kl_penalty", {"logprob": 0.5, "ref_logprob": 1.0, "kl_penalty": "abs"}, 0.5),
        ("kl_penalty", {"logprob": 0.0, "ref_logprob": 30.0, "kl_penalty": "low_var_kl"}, 10.0),
        ("entropy_from_logits", {"logits": np.zeros((1, 4))}, np.log(4.0)),
        (
            "logprobs_from_logits",
            {"logits": np.zeros((1, 4)), "labels": np.array([2])},
            -np.log(4.0),
        ),
    ],
)
def test_definitions(name, arguments, expected):
    helper = next(one for one in HELPERS if one.name == name)
    assert float(np.squeeze(helper.defined(arguments)[0])) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["masked_sum", "masked_mean", "agg_loss"])
def test_a_definition_has_no_value_for_a_mask_that_is_none(name):
    helper = next(one for one in HELPERS if one.name == name)
    arguments = {"values": VALUES, "loss_mat": VALUES, "loss_agg_mode": "token-mean"}
    for mask, fails in ((MASK, False), (VALUES, True)):
        given = {**arguments, "mask": mask, "loss_mask": mask}
        if fails:
            with pytest.raises(ValueError, match="a mask has"):
                helper.defined(given)
        else:
            assert helper.defined(given)[0].size == 1


def test_weights_between_two_bounds_and_the_temperature_of_one():
    weights = next(one for one in HELPERS if one.name == "compute_rollout_correction_weights")
    ratio = np.log(np.array([[0.4, 1.0], [3.0, 1.5]]))
    given = {"log_ratio": ratio, "response_mask": np.ones((2, 2)), "rollout_is": "token"}
    found = weights.defined({**given, "rollout_is_threshold": "0.5_2.0"})[0]
    assert found == pytest.approx(np.array([[0.0, 1.0], [0.0, 1.5]]))
    unit = next(one for one in HELPERS if one.name == "_is_scalar_unit_temperature")
    assert [bool(unit.defined({"temperature": one})[0]) for one in (1.0, 0.7)] == [True, False]


def test_what_only_reports_is_not_named(tmp_path):
    (tmp_path / "verl" / "utils" / "debug").mkdir(parents=True)
    report, step = tmp_path / "verl" / "utils" / "debug" / "metrics.py", tmp_path / "verl" / "trainer.py"
    report.write_text("def difference(one):\n    return one.shape\n")
    step.write_text("def step():\n    return difference([1])\n")
    space = {}
    for file in (report, step):
        exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises(AttributeError) as raised:
        space["step"]()
    assert raised_in(raised.value).endswith("trainer.py:2 step")


def test_advantages_are_of_groups():
    helper = next(one for one in HELPERS if one.name == "compute_grpo_outcome_advantage")
    arguments = {
        "token_level_rewards": np.array([[0.0, 1.0], [3.0, 0.0], [5.0, 0.0]]),
        "response_mask": np.array([[1, 1], [1, 0], [1, 1]]),
        "index": np.array(["a", "a", "b"]),
        "norm_adv_by_std_in_grpo": False,
    }
    assert helper.defined(arguments)[0].tolist() == [[-1, -1], [1, 0], [5, 5]]


def test_a_right_value_with_a_wrong_gradient_is_named(modules):
    torch = pytest.importorskip("torch")
    home, user = modules

    def detached(values, mask, axis=None):
        return (values * mask).detach().sum() + 0 * values.sum()

    def right(values, mask, axis=None):
        return (values * mask).sum()

    for function, expected in ((detached, [detached]), (right, [])):
        home.masked_sum = user.masked_sum = function
        wrong = []
        values = torch.tensor(VALUES, requires_grad=True)
        with watched_helpers(wrong.append):
            user.masked_sum(values, torch.tensor(MASK))
        assert wrong == expected


def test_the_caller_is_named_if_a_function_gets_no_tensor_or_arguments_without_a_value(tmp_path, monkeypatch):
    """Swapped arguments and an index that drops a row raise in the function that gets them."""
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "called.py").write_text(
        "class Tensor: pass\n"
        "def typed(one: Tensor):\n    return one.shape\n"
        "def logprobs_from_logits(logits, labels):\n    raise RuntimeError('sizes')\n"
        "def calls_typed():\n    typed([1])\n"
        "def number(one: int):\n    return one.item()\n"
        "def calls_with_a_number(one):\n    number(TENSOR)\n"
        "def made(parts: 'dict[str, Tensor]'):\n    return [one.shape for one in parts.values()]\n"
        "def calls_with_none():\n    made({'one': None})\n"
        "def asserts(parts):\n    assert len(parts) > 0, 'nothing'\n"
        "def calls_asserting():\n    asserts([])\n"
        "def inner_assertion():\n    own = 0\n    assert own, 'nothing'\n"
        "def asserts_its_own():\n    inner_assertion()\n"
        "def unbound(one: Tensor):\n    return lost\n"
        "def calls_unbound():\n    unbound([1])\n"
        "def calls_defined(labels):\n    logprobs_from_logits(NUMBERS, labels)\n"
    )
    source = (tmp_path / "verl" / "called.py").read_text()
    numbers = np.zeros((2, 3))
    tensor = types.SimpleNamespace(requires_grad=False)
    space = {"__name__": verl_helpers.FUNCTIONAL, "NUMBERS": numbers, "TENSOR": tensor}
    exec(compile(source, str(tmp_path / "verl" / "called.py"), "exec"), space)

    def place(name, *arguments):
        with pytest.raises((AttributeError, RuntimeError, AssertionError, NameError)) as raised:
            space[name](*arguments)
        return raised_in(raised.value).rpartition(" ")[2]

    assert place("calls_typed") == "calls_typed"
    assert place("calls_with_a_number", 3) == "calls_with_a_number"
    assert place("calls_with_none") == "calls_with_none"
    assert place("asserts", []) == "asserts"
    assert place("calls_asserting") == "calls_asserting"
    assert place("asserts_its_own") == "inner_assertion"
    assert place("calls_unbound") == "unbound"
    assert place("calls_defined", np.zeros((3, 2), dtype=int)) == "calls_defined"
    assert place("calls_defined", np.zeros(2, dtype=int)) == "logprobs_from_logits"
