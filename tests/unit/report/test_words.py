"""The Chinese of the pages: complete for what this package says, and the same as in the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from reason_texts import lint_texts, written_reasons

from harness.errors import EXIT_OK
from harness.outcome import Tier
from harness.plan.tasks.check_registry import all_checks
from harness.report.model.changes import MEANINGS, RunChangeKind
from harness.report.model.frame import EXIT_WORDS, frame_of
from harness.report.model.host_kinds import Stage
from harness.report.model.marks import EVIDENCE, STYLES, Mark
from harness.report.pages.chinese import in_chinese, reason_words
from harness.report.pages.html import STAGES
from harness.report.pages.page_templates import resource
from harness.verdict.plan_verdicts import REMEDIES, WITHOUT_OUTCOME
from harness.verdict.triage.catalogue import shipped_catalogue

ROOT = Path(__file__).parents[3]
DATA = json.loads(resource("words", "chinese.json"))
WORDS: dict[str, str] = DATA["words"]
REASONS: dict[str, str] = json.loads(resource("words", "reasons.json"))
FORMS = {
    "{#}": r"(?:[0-9][0-9,]*|\{\})",
    "{ID}": r"[A-Z][A-Z0-9-]+",
    "{name}": r"\S+",
    "{}": ".+?",
    "{text}": ".+?",
    "{s}": r"(?:s?|\{\})",
    "{was}": r"(?:was|were|\{\})",
}
TEXTS = [
    *(text for style in STYLES.values() for text in (style.label, style.word, style.meaning)),
    *(text for style in EVIDENCE.values() for text in (style.label, style.tag, style.meaning)),
    *(kind.value for kind in RunChangeKind),
    *MEANINGS.values(),
    *EXIT_WORDS.values(),
    *(
        frame_of(counts, exit_code=EXIT_OK, selection="").word
        for counts in ({}, {Mark.ERROR: 1}, {Mark.PASS: 1})
    ),
    *(frame_of(counts, exit_code=EXIT_OK, selection="").meaning for counts in ({}, {Mark.PASS: 1})),
    *(tier.value for tier in Tier),
    *(stage.value for stage in Stage),
    *STAGES.values(),
    *REMEDIES.values(),
    *WITHOUT_OUTCOME.values(),
    *(check.question for check in all_checks()),
]


@pytest.mark.parametrize("text", sorted(set(TEXTS)))
def test_every_word_of_the_model_has_its_chinese(text: str) -> None:
    assert re.search("[\u4e00-\u9fff]|^CPU$", WORDS.get(text, "")), (
        f"no Chinese for {text!r} in words/chinese.json"
    )


def test_the_page_and_the_documentation_translate_alike() -> None:
    documented = json.loads((ROOT / "docs/zh/reference.json").read_text("utf-8"))["sentences"]
    assert {text: WORDS[text] for text in WORDS if text in documented} == {
        text: documented[text] for text in WORDS if text in documented
    }


def test_patterns_use_every_part_of_the_text_once() -> None:
    for english, chinese in [*DATA["patterns"], *REASONS.items()]:
        places = re.findall(r"\{(\d)\}", chinese)
        parts = len(re.findall(r"\{(?:#|ID|name|text)?\}", english))
        assert sorted(places) == [str(place + 1) for place in range(parts)], english


def _table(language: str) -> dict[str, list[str]]:
    lines = (ROOT / f"docs/{language}/glossary.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0] if language == "en" else row[1]: row for row in rows}


def test_the_glossary_is_that_of_the_documentation() -> None:
    english, chinese = _table("en"), _table("zh")
    for word, (meaning, name, said) in DATA["glossary"].items():
        assert english[word][1] == meaning, word
        assert [chinese[word][0], chinese[word][2]] == [name, said], word


def test_every_word_with_a_hover_is_in_the_glossary() -> None:
    templates = (ROOT / "harness/report/pages/templates").glob("*.html")
    used = {
        word for page in templates for word in re.findall(r'ui\.term\("([^"]+)"', page.read_text("utf-8"))
    }
    assert used
    assert used <= set(DATA["glossary"])


#: The share of texts that may wait for their Chinese, so that a new rule does not wait for a translator.
NOT_YET = 0.05
#: What reports of the shipped matrix say most often.
SAID_OFTEN = (
    "no NPU on this host, and not in profile default: takes one to three minutes per cell",
    "Not checked: verl 0.6.0.dev0 is the commit 796871d7d092, which no local mirror has.",
    "Not checked: the sources of vllm-ascend 1de16eadeec6 are not available.",
    "verl 0.6.1 has no global_denominators",
    "this cell has no vllm-ascend",
    "verl/hf-rollout applies to verl-0.6.1-py3-none-any.whl as it is",
    "verl is built from source at 5a2e0b1c: the lock contains neither the package nor its requirements.",
    "No version of torch-npu satisfies all requirements: verl==1 requires torch-npu==2; the stack requires torch-npu==1.",
    "Choose versions of vllm-ascend that agree on torch-npu.",
    "Decided from 1 run (seed 1000), reference grpo 76edd345a7f3: 20 runs on cpu.",
    "1 more reason",
    "2 more reasons",
    "1 cell, 25 checks",
    "Failures without an owner: 0. Expected failures: 12, with 1 owner.",
    "In the last 7 days 1 check of a cell broke and 2 were fixed.",
)


@pytest.mark.parametrize("text", SAID_OFTEN)
def test_what_is_said_often_has_its_chinese(text: str) -> None:
    assert has_chinese(text), f"no Chinese for {text!r} in words/chinese.json"


def _expression(english: str) -> re.Pattern[str]:
    parts = re.split(r"(\{(?:#|s|was|ID|name|text)?\})", english)
    return re.compile("".join(FORMS.get(part) or re.escape(part) for part in parts), re.DOTALL)


#: The most specific first, as on the page. Forms without words of their own match anything.
PATTERNS = [
    _expression(english)
    for english in [*(english for english, _chinese in DATA["patterns"]), *REASONS]
    if re.search("[a-z]{2}", re.sub(r"\{\w*\}", "", english))
]


def has_chinese(text: str) -> bool:
    """Whether the page says this text in Chinese, as a whole or by its sentences."""
    if text in WORDS or text in REASONS or any(pattern.fullmatch(text) for pattern in PATTERNS):
        return True
    sentences = re.split(r"(?<=[.!?]) +(?=[A-Z0-9{])", text)
    return len(sentences) > 1 and all(map(has_chinese, sentences))


@pytest.mark.parametrize("source", [written_reasons, lint_texts])
def test_reasons_and_remedies_have_their_chinese(source: Callable[[], Mapping[str, str]]) -> None:
    texts = source()
    assert len(texts) > 100
    missing = {text: where for text, where in texts.items() if not has_chinese(text)}
    shown = "\n".join(f"{where}: {text}" for text, where in missing.items())
    assert len(missing) <= NOT_YET * len(texts), (
        f"write the Chinese of these into words/reasons.json:\n{shown}"
    )


def _matrix_texts(value: object, name: str = "") -> Iterator[str]:
    """What the shipped matrix.yaml says in sentences: reasons, findings and notes."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _matrix_texts(item, "reason" if name == "without" else str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _matrix_texts(item, name)
    elif name in {"reason", "what", "notes"}:
        yield " ".join(str(value).split())


def test_every_sentence_of_the_shipped_matrix_has_its_chinese() -> None:
    document = yaml.safe_load((ROOT / "matrix.yaml").read_text("utf-8"))
    known = {**WORDS, **reason_words()}
    texts = {text for part in document.values() for text in _matrix_texts(part)}
    assert len(texts) > 100
    missing = [text for text in sorted(texts) if text not in known]
    assert not missing, "write the Chinese of these into words/matrix.json"


def test_every_cause_that_triage_knows_has_its_chinese() -> None:
    known = shipped_catalogue()
    texts = {text for one in (*known.signatures, *known.metrics) for text in (one.cause, one.remedy)}
    texts |= {setting.cause for setting in known.settings}
    assert len(texts) > 200
    missing = [text for text in sorted(texts) if in_chinese(text) == text]
    assert not missing, "write the Chinese of these into words/triage.json"


#: A browser test says the same texts with the script of the pages.
VECTORS: dict[str, str] = json.loads(Path(__file__).with_name("chinese_vectors.json").read_text("utf-8"))


@pytest.mark.parametrize("english", VECTORS)
def test_files_without_a_script_are_in_chinese_too(english: str) -> None:
    assert in_chinese(english) == VECTORS[english]


def test_a_reason_without_its_chinese_is_noticed() -> None:
    assert not has_chinese("the moon is in the wrong house for {}")
