from __future__ import annotations

import numpy as np
import pytest

from harness.errors import InputError
from harness.numerics.loss.cases.loss_battery import default_battery
from harness.numerics.loss.cases.loss_case import FORMAT, load_cases, save_cases, write_npz


def test_a_battery_survives_its_file_bit_for_bit(tmp_path):
    cases = default_battery(seed=5)
    save_cases(tmp_path / "cases.npz", cases)
    loaded = load_cases(tmp_path / "cases.npz")
    assert [case.name for case in loaded] == [case.name for case in cases]
    for before, after in zip(cases, loaded, strict=True):
        assert (before.contract, before.settings, before.requires) == (
            after.contract,
            after.settings,
            after.requires,
        )
        for name, array in before.inputs.items():
            assert array.dtype == after.inputs[name].dtype
            assert array.tobytes() == after.inputs[name].tobytes()


def test_the_same_battery_gives_the_same_file_size_and_shares_arrays(tmp_path):
    cases = default_battery(seed=5)
    save_cases(tmp_path / "cases.npz", cases)
    total = sum(array.nbytes for case in cases for array in case.inputs.values())
    assert (tmp_path / "cases.npz").stat().st_size < total / 2


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_an_input_error(tmp_path, content):
    file = tmp_path / "cases.npz"
    file.write_bytes(content)
    with pytest.raises(InputError, match="npz file cannot be read") as caught:
        load_cases(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_cases(tmp_path / "absent.npz")


@pytest.mark.parametrize(
    "index", [{"format": FORMAT, "cases": [{}]}, {"format": FORMAT}, {"format": "other"}]
)
def test_an_incomplete_index_is_an_input_error(tmp_path, index):
    write_npz(tmp_path / "cases.npz", index, {"a": np.ones(1)})
    with pytest.raises(InputError):
        load_cases(tmp_path / "cases.npz")
