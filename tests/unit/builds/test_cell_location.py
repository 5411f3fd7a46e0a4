"""Reading the location of a built environment."""

from __future__ import annotations

from types import SimpleNamespace

from environments import GOOD

from harness.cell_program.built_environment import ENVIRONMENT_FORMAT, environment_location


def test_the_location_is_read_of_everything_that_environment_stores():
    stored = SimpleNamespace(measurements=ENVIRONMENT_FORMAT.write(GOOD))
    assert environment_location(stored).python == GOOD.python
    assert environment_location(stored).prefix == GOOD.prefix
