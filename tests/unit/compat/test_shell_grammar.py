"""What bash accepts and shfmt does not: the script is read all the same, and places stay those of the script."""

from __future__ import annotations

import pytest

from harness.compat.lint.launch_script import parse_script
from harness.errors import InputError


def arguments(text: str) -> list[str]:
    return [word.text for job in parse_script(text).jobs for word in job.arguments]


@pytest.mark.parametrize(
    "text",
    [
        'declare -A M=(["two words"]=7)\npython3 -m a.b x=${M[two words]}\n',
        "declare -A M=([trainer.nnodes]=7)\npython3 -m a.b x=${M[trainer.nnodes]}\n",
        "A=$((echo 7) | cat)\npython3 -m a.b x=$A\n",
        "((echo q) | cat)\npython3 -m a.b x=7\n",
        "(((n=7))\necho)\npython3 -m a.b x=7\n",
        "for j in 1; do\npython3 -m a.b x=7 # note \\\ndone\n",
        "python3 -m a.b x=7 # note \\\nARGS=(1)\n",
        "python3 -m a.b x=7 # note \\",
    ],
)
def test_bash_that_shfmt_refuses_is_read(text: str) -> None:
    assert arguments(text) == ["x=7"]


def test_places_are_those_of_the_script() -> None:
    script = parse_script("declare -A M=([a.b]=7)\npython3 -m a.b y=${M[a.b]} é=1 x=${M[a.b]} z=1\n")
    assert [word.where.column for word in script.jobs[0].arguments] == [16, 28, 32, 44]


def test_what_bash_refuses_too_is_an_error_at_its_place() -> None:
    with pytest.raises(InputError, match=r"s\.sh:2:1"):
        parse_script("A=1\nif true; then\npython3 -m a.b x=1\n", "s.sh")
