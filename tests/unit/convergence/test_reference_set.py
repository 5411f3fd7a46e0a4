import json

import pytest

from harness.convergence.decision import reference_set
from harness.convergence.smoke.smoke_recipe import CANDIDATE_SEEDS, RECIPES, recipe
from harness.convergence.telemetry.training_records import ReferenceProvenance
from harness.convergence.trainer import trainer_program
from harness.convergence.trainer.judging import reference_comparison
from harness.errors import InputError
from harness.evidence import DeviceFacts

SETS = reference_set.shipped_sets()


@pytest.mark.parametrize("name", [*RECIPES, "gspo-paper"])
def test_a_reference_set_is_shipped_for_the_settings_that_are_trained(name):
    # The clip range of the GSPO paper, arXiv:2507.18071v2, section 5.1.
    low, high = (3e-4, 4e-4) if name == "gspo-paper" else (None, None)
    trained = recipe(name.split("-")[0], clip_ratio_low=low, clip_ratio_high=high)

    found = reference_set.for_recipe(trained.digest())

    assert found is not None, (
        "record it again: the recipe changed (python -m harness.convergence.smoke.record_smoke)"
    )
    assert found.name == name
    assert found.recipe == trained.as_json()
    assert len(found.runs) >= 20
    assert not set(found.seeds) & set(CANDIDATE_SEEDS)


@pytest.mark.parametrize("found", SETS, ids=lambda found: found.name)
def test_a_reference_set_says_where_it_comes_from(found):
    device = found.provenance.device
    # The sets of the trainer checks were recorded on the simulated device, and must say so.
    trainer = found.name.startswith("trainer-")
    assert (device.device, device.simulated) == (("npu:0", True) if trainer else ("cpu", False))
    assert {"verl", "torch", "numpy"} <= set(found.provenance.versions)
    assert found.provenance.date
    assert reference_set.by_digest(found.digest) == found


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_a_trainers_reference_set_is_shipped_for_the_settings_that_its_check_trains(algorithm):
    words = ["--algorithm", algorithm, "--device", "npu", "--folder", "f", "--out", "o"]
    settings = trainer_program.settings_digest(trainer_program.parser().parse_args(words))

    found = reference_comparison.reference_for(settings, "0.6.1")

    assert found is not None, "record it again: the recipe changed (npu-matrix run --record-reference)"
    assert found.name == f"trainer-{algorithm}"
    assert reference_comparison.missing_references(found) == ""
    assert set(found.seeds) == set(reference_comparison.REFERENCE_SEEDS)
    assert not set(found.seeds) & set(reference_comparison.CANDIDATE_SEEDS)


def test_gspo_trains_the_objective_of_its_paper():
    assert RECIPES["gspo"].loss_agg_mode == "seq-mean-token-mean"


def test_writing_and_reading_keep_everything(tmp_path):
    runs = [(0, {"reward": (0.1, float("nan")), "seconds": (1.0, 1.0)})]
    provenance = ReferenceProvenance(device=DeviceFacts(device="cpu"))
    body = reference_set.content(name="x", recipe_digest="d", recipe={}, provenance=provenance, runs=runs)
    path = reference_set.write(tmp_path, body)

    found = reference_set.load(path)

    assert path.name == f"x-{found.digest[:12]}.json"
    assert set(found.runs[0]) == {"reward"}
    assert found.runs[0]["reward"][0] == 0.1
    assert reference_set.by_digest("0" * 64, {"NPU_MATRIX_REFERENCES": str(tmp_path)}) is None


def test_an_edited_reference_set_is_refused(tmp_path):
    original = next(reference_set.FOLDER.glob("*.json"))
    body = json.loads(original.read_text())
    body["runs"][0]["series"]["reward"][0] = 0.9
    edited = tmp_path / original.name
    edited.write_text(json.dumps(body))

    with pytest.raises(InputError, match="does not match its content"):
        reference_set.load(edited)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"digest": 1, "schema": {}}'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)

    with pytest.raises(InputError):
        reference_set.load(path)


@pytest.mark.parametrize("values", [{"algorithm": "ppo"}, {"algorithm": "grpo", "steps": 0}])
def test_what_cannot_be_trained_is_refused(values):
    with pytest.raises(InputError):
        recipe(**values)
