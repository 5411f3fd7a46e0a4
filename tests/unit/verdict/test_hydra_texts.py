"""Triage knows every text by which Hydra refuses an argument; Hydra itself makes the texts."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from harness.verdict.triage.diagnosis import triage_text

#: What users passed to Hydra by mistake.
NO_OVERRIDES = (
    *("a.b", "a.b =", "3", "/", "a=[1,2", "a={x:1", "a='x", "a=x'y", "a=$x{", "--foo", "-a=3", "\\"),
    *("a..b=3", "a=b=c", "+a b=3", '"a=3"', "a.b:3", "(a=3", "a=f(", "a=x)", "a=x,", "a.b=“x”", "a=x;", "&"),
    *("", "data.train_files=['a.parquet' 'b.parquet']", "trainer.logger=['console',]"),
)


@pytest.mark.parametrize("argument", NO_OVERRIDES)
def test_an_argument_that_hydra_cannot_read_has_its_cause(argument: str) -> None:
    with pytest.raises(HydraException) as raised:
        OverridesParser.create().parse_override(argument)
    log = f"{raised.value}\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    root = triage_text(log.encode()).root
    assert root is not None
    assert root.id == "hydra-argument-without-key"


def test_flash_attention_without_an_npu_is_known_where_the_log_shows_npus() -> None:
    said = (
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the "
        "package flash_attn seems to be not installed.\n"
    )
    root = triage_text(f"npu-smi: 8 x Ascend910B3\n{said}".encode()).root
    assert root is not None
    assert root.id == "fa-without-npu"
    assert not triage_text(said.encode()).known
