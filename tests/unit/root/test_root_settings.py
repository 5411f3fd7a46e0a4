import json
import os
from pathlib import Path

import pytest

from harness.cli.demo_command import DEMO_SETTINGS
from harness.errors import EXIT_BAD_INPUT, InfrastructureError, InputError, caused_by
from harness.settings import OPTIONS, find_root, load_settings


def settings(tmp_path: Path, flags=None, environ=None, file: str | None = None):
    if file is not None:
        (tmp_path / "npu-matrix.toml").write_text(file)
    return load_settings(flags or {}, environ or {}, tmp_path)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path):
    file = 'profile = "nightly"\nreports = "out"\njobs = 3\n'
    environ = {"NPU_MATRIX_PROFILE": "patch", "NPU_MATRIX_REPORTS": "public"}
    found = settings(tmp_path, {"profile": "one"}, environ, file)
    assert (found["profile"], found.values["profile"].origin) == ("one", "--profile")
    assert (found["reports"], found.values["reports"].origin) == ("public", "NPU_MATRIX_REPORTS")
    assert (found.jobs, found.values["jobs"].origin) == (3, str(tmp_path / "npu-matrix.toml"))
    assert found.values["matrix"].origin == "default"


def test_relative_paths_are_taken_from_the_checkout(tmp_path):
    assert settings(tmp_path).path("reports") == tmp_path / "reports"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda file: file.symlink_to("nowhere")])
def test_settings_that_are_no_file_are_not_passed_over(tmp_path, make):
    make(tmp_path / "npu-matrix.toml")
    with pytest.raises(InputError, match="not a regular file"):
        settings(tmp_path)


def test_zero_jobs_means_one_per_cpu(tmp_path):
    assert settings(tmp_path).jobs == os.cpu_count()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ('profil = "x"', "unknown setting 'profil'"),
        ("profile = ", "not valid TOML"),
        ("\ud800", "not valid TOML"),
        ("profile = " + "[" * 5000, "not valid TOML"),
        ('state = ["a", "b"]', "not a single value"),
        ("profile = {name = 1}", "not a single value"),
        ("profile = 2026-11-20", "not a single value"),
        ('profile = "a\\nb"', "not a single value"),
    ],
)
def test_a_bad_file_is_named(tmp_path, file, message):
    (tmp_path / "npu-matrix.toml").write_bytes(file.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=message) as caught:
        settings(tmp_path)
    assert "npu-matrix.toml" in str(caught.value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
@pytest.mark.parametrize("value", ["x" * 5000, "two\nlines", "nul\0"], ids=["long", "lines", "nul"])
def test_no_setting_has_a_value_that_is_too_long_or_not_on_one_line(tmp_path, option, value):
    with pytest.raises(InputError, match=f"^{option.name} is"):
        settings(tmp_path, {option.name: value})
    with pytest.raises(InputError, match=f"set by NPU_MATRIX_{option.name.upper()}"):
        settings(tmp_path, environ={f"NPU_MATRIX_{option.name.upper()}": value})
    with pytest.raises(InputError, match=r"npu-matrix\.toml: "):
        settings(tmp_path, file=f"{option.name} = {json.dumps(value)}\n")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_number_with_thousands_of_digits_names_the_file(tmp_path, option):
    for number in ("9" * 5000, "9" * 20, "-" + "9" * 20):
        with pytest.raises(InputError, match=r"npu-matrix\.toml: "):
            settings(tmp_path, file=f"{option.name} = {number}\n")


def test_a_name_in_a_path_that_no_file_system_allows_is_bad_usage(tmp_path):
    for name in ("matrix", "state", "cache", "reports"):
        with pytest.raises(InputError, match="too long"):
            settings(tmp_path, {name: "folder/" + "x" * 300})


def test_a_file_name_that_is_too_long_is_bad_usage_wherever_it_is_found():
    try:
        Path("x" * 5000).stat()
    except OSError as error:
        shown = caused_by(InfrastructureError(str(error), fix="check the path"), error)
    assert shown.exit_code == EXIT_BAD_INPUT
    assert "shorter" in str(shown)


@pytest.mark.parametrize(("said", "meant"), [("1", True), ("True", True), ("0", False), ("no", False)])
def test_a_switch_is_on_or_off(tmp_path, said, meant):
    assert settings(tmp_path, environ={"NPU_MATRIX_WAIT": said}).wait is meant


def test_a_switch_that_is_neither_says_who_set_it(tmp_path):
    with pytest.raises(InputError, match="use true or false") as caught:
        settings(tmp_path, environ={"NPU_MATRIX_WAIT": "maybe"})
    assert "NPU_MATRIX_WAIT" in str(caught.value)


@pytest.mark.parametrize("jobs", ["many", "-1", "1.5", "\N{SUPERSCRIPT TWO}", "", "9" * 5000])
def test_jobs_that_is_no_number_says_who_set_it(tmp_path, jobs):
    with pytest.raises(InputError, match="NPU_MATRIX_JOBS"):
        settings(tmp_path, environ={"NPU_MATRIX_JOBS": jobs})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("jobs", "-1"),
            ("cell_memory", "much"),
            ("cell_shm", "8 gigabytes"),
            ("engine", "lxc"),
            ("engine", ""),
        ),
        *(("wait", ""), ("executor", "slurm"), ("ray_address", ""), ("ray_address", "--head")),
        ("base_image", "-rm"),
    ],
)
def test_a_value_out_of_range_is_refused_whoever_sets_it_and_whatever_uses_it(tmp_path, name, value):
    for found in (
        lambda: settings(tmp_path, {name: value}),
        lambda: settings(tmp_path, environ={f"NPU_MATRIX_{name.upper()}": value}),
        lambda: settings(tmp_path).overridden({name: value}),
        lambda: settings(tmp_path, file=f'{name} = "{value}"'),
    ):
        (tmp_path / "npu-matrix.toml").unlink(missing_ok=True)
        with pytest.raises(InputError, match=f"invalid value for {name}: ") as caught:
            found()
        assert "set by" in str(caught.value) or "npu-matrix.toml: " in str(caught.value)


@pytest.mark.parametrize("name", ["jobs", "cell_memory", "engine", "executor"])
@pytest.mark.parametrize("value", ["true", "false", "-5"])
def test_a_value_of_another_type_in_the_file_is_refused(tmp_path, name, value):
    with pytest.raises(InputError, match=rf"npu-matrix\.toml: invalid value for {name}: "):
        settings(tmp_path, file=f"{name} = {value}")


@pytest.mark.parametrize("name", ["cann@sha256:12", "cann@latest", "two words", "-rm", "cann:1@sha256:"])
def test_a_base_image_that_is_no_name_says_who_set_it(tmp_path, name):
    with pytest.raises(InputError, match="use an image name") as caught:
        settings(tmp_path, environ={"NPU_MATRIX_BASE_IMAGE": name})
    assert "NPU_MATRIX_BASE_IMAGE" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "base", "localhost/base:1", "host:5000/a/cann:8.5", f"a/cann:8@sha256:{'0' * 64}"]
)
def test_a_base_image_is_named_in_every_way_engines_know(tmp_path, name):
    environ = {"NPU_MATRIX_ENGINE": "docker", "NPU_MATRIX_BASE_IMAGE": name}
    assert settings(tmp_path, environ=environ).engine == {"engine": "docker", "base_image": name}


def test_what_cells_read_goes_into_their_environment_with_absolute_paths(tmp_path):
    found = settings(
        tmp_path, environ={"NPU_MATRIX_CELL_MEMORY": "16g"}, file='mirrors = "clones"\ncache = "c"\n'
    )
    assert found.exported() == {
        "NPU_MATRIX_FETCH": "true",
        "NPU_MATRIX_FETCH_FILE": "false",
        "NPU_MATRIX_FETCHED_MIRRORS": str(tmp_path / "c" / "mirrors"),
        "NPU_MATRIX_MIRRORS": str(tmp_path / "clones"),
        "NPU_MATRIX_CELL_MEMORY": "16g",
    }


def test_a_folder_of_a_demo_uses_the_installed_matrix_also_below_a_checkout(tmp_path):
    (tmp_path / "matrix.yaml").write_text("format: 1\n")
    demo = tmp_path / "demo"
    demo.mkdir()
    assert find_root(demo) == tmp_path
    found = settings(demo, file=DEMO_SETTINGS)
    assert find_root(demo) == demo
    assert found.uses_shipped_matrix
    assert not found.has_own_matrix
    assert not found.lacks_matrix
    assert found.run_command == "npu-matrix run"


def test_a_folder_without_a_matrix_is_told_the_command_that_works_there(tmp_path):
    assert settings(tmp_path).with_shipped_matrix().run_command == "npu-matrix demo --folder ."
