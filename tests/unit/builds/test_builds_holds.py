from pathlib import Path

from environments import environment_built, environment_probe

from harness.builds.cell.venv_environment import FINISHED, holds
from harness.cell_program.built_environment import EnvironmentBuilt


def built(folder: Path) -> EnvironmentBuilt:
    site = folder / "venv" / "lib" / "site-packages"
    record = site / "verl-0.9.1.dist-info" / "RECORD"
    (site / "verl").mkdir(parents=True)
    record.parent.mkdir()
    (site / "verl" / "core.py").write_text("")
    (site / "verl" / "M=1,N=2.json").write_text("")
    record.write_text(
        'verl/core.py,sha256=x,0\n"verl/M=1,N=2.json",sha256=y,0\nverl/__pycache__/core.cpython-311.pyc,,\n../../bin/tool,,\n'
    )
    (folder / FINISHED).write_text("{}")
    python = folder / "venv" / "python"
    python.write_text("")
    return environment_built(
        prefix=str(folder / "venv"),
        python=str(python),
        runtime="",
        site_packages=str(site),
        probe=environment_probe(packages={"verl": "0.9.1", "numpy": "2.0"}),
    )


def test_an_environment_that_is_whole_holds(tmp_path):
    assert holds(built(tmp_path)) == ""


def test_a_deleted_module_of_verl_is_named(tmp_path):
    environment = built(tmp_path)
    (tmp_path / "venv/lib/site-packages/verl/core.py").unlink()
    assert holds(environment).endswith("verl/core.py is gone")


def test_a_name_with_commas_is_read_as_the_installer_wrote_it(tmp_path):
    environment = built(tmp_path)
    (tmp_path / "venv/lib/site-packages/verl/M=1,N=2.json").unlink()
    assert holds(environment).endswith("verl/M=1,N=2.json is gone")


def test_a_deleted_record_is_named(tmp_path):
    environment = built(tmp_path)
    (tmp_path / "venv/lib/site-packages/verl-0.9.1.dist-info/RECORD").unlink()
    assert holds(environment).endswith("RECORD is gone")
