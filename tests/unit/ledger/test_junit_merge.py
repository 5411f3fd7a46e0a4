"""JUnit files of other producers are read correctly and merged without loss, and no failure gets lost."""

from __future__ import annotations

import codecs
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import junitparser
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import InfrastructureError, InputError
from harness.ledger.junit import junit_stream
from harness.ledger.junit.junit_merge import MergedReport, merge_junit
from harness.ledger.junit.junit_stream import MAX_DEPTH
from harness.outcome import Status
from harness.sources.secrets.masking import Masker

SAMPLES = Path(__file__).parent / "junit"
PRODUCERS = sorted(file.stem for file in SAMPLES.glob("*.xml"))
#: Producer -> (cases, failures, errors, skipped, flaky), counted by hand in the source of its test suite.
TRUTH = {
    "ctest": (7, 2, 0, 3, 0),
    "gtest": (4, 1, 0, 2, 0),
    "jest": (7, 2, 1, 1, 0),
    "nextest": (3, 1, 0, 0, 1),
    "pytest": (7, 2, 2, 2, 0),
    "surefire": (4, 1, 0, 1, 1),
}


def merge(folder: Path, *contents: str | bytes, **more: object) -> tuple[MergedReport, ET.Element]:
    sources = []
    for number, content in enumerate(contents):
        source = folder / f"in-{number}.xml"
        source.write_bytes(content.encode() if isinstance(content, str) else content)
        sources.append(source)
    merged = merge_junit(folder / "out.xml", sources, mask=Masker(()), **more)  # type: ignore[arg-type]
    return merged, ET.parse(folder / "out.xml").getroot()


def suite(*cases: str, **said: object) -> str:
    attributes = "".join(f' {name}="{value}"' for name, value in said.items())
    return f'<testsuite name="s"{attributes}>{"".join(cases)}</testsuite>'


@pytest.mark.parametrize("producer", PRODUCERS)
def test_each_producer_is_read_as_it_meant_it(producer: str, tmp_path: Path) -> None:
    merged = merge_junit(tmp_path / "out.xml", [SAMPLES / f"{producer}.xml"], mask=Masker(()))
    assert merged.files[0].problem == ""
    counts = merged.counts
    assert (counts.tests, counts.failures, counts.errors, counts.skipped, counts.flaky) == TRUTH[producer]


def test_all_producers_merge_into_what_other_programs_count_alike(tmp_path: Path) -> None:
    files = [SAMPLES / f"{producer}.xml" for producer in PRODUCERS]
    merged = merge_junit(tmp_path / "out.xml", files, mask=Masker(()))
    document = junitparser.JUnitXml.fromfile(str(tmp_path / "out.xml"))
    said = (document.tests, document.failures, document.errors, document.skipped)
    assert said == tuple(map(sum, zip(*(TRUTH[one][:4] for one in PRODUCERS), strict=True)))
    document.update_statistics()
    assert (document.tests, document.failures, document.errors, document.skipped) == said
    assert merged.flaky == (
        "nextest-tests::basic: test_flaky_mod_4",
        "CalcTest: flaky",
    )
    assert "Tile: Odd" in merged.failed


def test_merging_the_merged_file_changes_nothing(tmp_path: Path) -> None:
    files = [SAMPLES / f"{producer}.xml" for producer in PRODUCERS]
    first = merge_junit(tmp_path / "one.xml", files, mask=Masker(()))
    second = merge_junit(tmp_path / "two.xml", [tmp_path / "one.xml"], mask=Masker(()))
    assert second.counts == first.counts
    assert (tmp_path / "two.xml").read_bytes() == (tmp_path / "one.xml").read_bytes()


def test_attempts_of_reruns_and_properties_stay_what_they_were(tmp_path: Path) -> None:
    merge_junit(tmp_path / "out.xml", [SAMPLES / "surefire.xml", SAMPLES / "nextest.xml"], mask=Masker(()))
    root = ET.parse(tmp_path / "out.xml").getroot()
    (attempt,) = root.iter("flakyError")
    assert attempt.findtext("stackTrace", "").startswith("java.lang.IllegalStateException: first")
    assert attempt.findtext("system-out") == "of the first attempt"
    assert len(list(root.iter("rerunFailure"))) == 2
    assert [one.text for one in root.iter("flakyFailure")] == ["attempt 1", "attempt 2"]
    assert root.find(".//property[@name='java.specification.version']") is not None


def test_properties_of_a_cell_go_to_every_outermost_suite(tmp_path: Path) -> None:
    _merged, root = merge(
        tmp_path,
        "<testsuites><testsuite name='a'><properties><property name='own' value='1'/></properties>"
        "<testcase name='x'/></testsuite><testsuite name='b'><testsuite name='c'/></testsuite></testsuites>",
        properties={"cell": "verl-0-9-1", "torch": '<2.7"&'},
    )
    suites = root.findall("testsuite")
    for one in suites:
        names = {p.get("name"): p.get("value") for p in one.findall("properties/property")}
        assert names["cell"] == "verl-0-9-1"
        assert names["torch"] == '<2.7"&'
        assert len(one.findall("properties")) == 1
    assert suites[0].find("properties/property[@name='own']") is not None
    assert suites[1].find("testsuite/properties") is None


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ('<testcase name="x" status="notrun"/>', Status.NOT_RUN),
        ('<testcase name="x" status="run" result="suppressed"/>', Status.NOT_RUN),
        ('<testcase name="x" status="Disabled"/>', Status.NOT_RUN),
        ('<testcase name="x" status="failed"/>', Status.FAIL),
        ('<testcase name="x" result="error"/>', Status.ERROR),
        ('<testcase name="x" status="run" result="completed"/>', Status.PASS),
        ('<testcase name="x"><skipped/><failure/></testcase>', Status.FAIL),
        ('<testcase name="x"><system-out>&lt;failure/></system-out></testcase>', Status.PASS),
        ('<testcase name="x"><system-out><![CDATA[<failure/>]]></system-out></testcase>', Status.PASS),
        ('<testcase name="x"><system-out><failure/></system-out></testcase>', Status.FAIL),
        ('<testcase name="x"><wrap><wrap><failure/></wrap></wrap></testcase>', Status.FAIL),
        ('<testcase name="x"><wrap><error/></wrap><failure/></testcase>', Status.ERROR),
        ('<x:testcase name="x" xmlns:x="u"><x:failure/></x:testcase>', Status.FAIL),
        ('<wrap xmlns="u"><testcase name="x"><failure xmlns="v"/></testcase></wrap>', Status.FAIL),
        ('<TestCase name="x"><Failure/></TestCase>', Status.FAIL),
        ('<testcase x:name="x" xmlns:x="u" x:status="failed"/>', Status.FAIL),
        ('<testcase name="x" status="timed out"/>', Status.ERROR),
        ('<testcase name="x" status="not-run"/>', Status.NOT_RUN),
        ('<testcase name="x" success="false"/>', Status.FAIL),
        ('<testcase name="x" failure="boom"/>', Status.FAIL),
        ('<testcase name="x" errors="0" failed="false" status="Passed"/>', Status.PASS),
        ('<testcase name="x" status="failed"><skipped/></testcase>', Status.FAIL),
        ('<testcase name="x"><wrap><skipped/></wrap></testcase>', Status.NOT_RUN),
        ('<testcase name="x"><rerunFailure/></testcase>', Status.FAIL),
        ('<wrap><testcase name="x"><failure/></testcase></wrap>', Status.FAIL),
    ],
)
def test_a_case_without_marks_is_no_pass_when_its_attributes_say_otherwise(
    case: str, status: Status, tmp_path: Path
) -> None:
    merged, root = merge(tmp_path, suite(case))
    assert (
        merge_junit(tmp_path / "again.xml", [tmp_path / "out.xml"], mask=Masker(())).counts == merged.counts
    )
    counts = merged.counts
    assert (counts.failures, counts.errors, counts.skipped) == (
        status is Status.FAIL,
        status is Status.ERROR,
        status is Status.NOT_RUN,
    )
    assert root.get("tests") == "1"


@pytest.mark.parametrize(
    "content",
    [
        suite('<testcase name="x"/>', tests=3),
        suite('<testcase name="x"/>', tests=1, failures=1),
        suite('<testcase name="x"/>', tests=1, errors=2),
        suite('<testcase name="x"/>', tests=1, failures="1.0"),
        suite('<testcase name="x"/>', tests=1, failures="one"),
        suite('<testcase name="x"/>', tests="many"),
        suite('<testcase name="x"/>', failed=1),
        suite('<testcase name="x"/>', status="crashed"),
        suite('<testcase name="x"/>', tests=1, skipped=1),
        suite('<testcase name="x"/>', tests=1, status="skipped"),
        suite('<testcase name="x"/>', FAILURES=1),
        suite('<testcase name="x"/>', **{"x:failures": 1}),
        '<testsuites failures="1"><testsuite name="a"><testcase name="x"/></testsuite></testsuites>',
        '<testsuites tests="2"><testsuite name="a"><testcase name="x"/></testsuite></testsuites>',
        suite('<testsuites errors="1"><testcase name="x"/></testsuites>'),
        '<testsuites><failure/><testsuite name="a"><testcase name="x"/></testsuite></testsuites>',
        '<testsuites><a><error/></a><testsuite name="a"><testcase name="x"/></testsuite></testsuites>',
        suite('<testcase name="x"/><xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="y.xml"/>'),
        suite('<testcase name="x"><fail\udcffure/></testcase>').encode("utf-8", "surrogateescape"),
        "<testsuites><testsuite name='a' tests='2'/></testsuites>",
        '<testsuite name="s"><testcase name="x"/>',
        '<testsuite name="s"><testcase name="x"',
        '<testsuite name="s"><testcase name="x"/></testsuite><testsuite/>',
        "",
        "no xml",
        "<test-run><test-case/></test-run>",
        '<testsuite name="s">' + "<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH + "</testsuite>",
        '<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;&a;">]><testsuite name="&b;"><testcase name="x"/></testsuite>',
        '<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite name="s"><testcase name="x"/></testsuite>',
    ],
)
def test_a_file_that_is_not_whole_never_turns_the_merged_one_green(
    content: str | bytes, tmp_path: Path
) -> None:
    merged, root = merge(tmp_path, suite('<testcase name="good"/>'), content)
    assert merged.files[1].problem
    assert not merged.files[0].problem
    assert merged.counts.errors >= 1
    assert any("can be read to its end" in name for name in merged.failed)
    assert root.find(".//testcase[@name='good']") is not None


def test_a_case_cut_off_in_the_middle_is_no_pass(tmp_path: Path) -> None:
    whole = suite(
        '<testcase name="x"><system-out>long</system-out><failure message="m">text</failure></testcase>'
    )
    for length in range(whole.index("<system-out>"), whole.index("</testcase>")):
        merged, root = merge(tmp_path, whole[:length])
        case = next(one for one in root.iter("testcase") if one.get("name") == "x")
        assert case.find("error") is not None
        assert merged.counts.tests == 2


def test_a_suite_that_broke_as_a_whole_counts(tmp_path: Path) -> None:
    content = '<testsuite name="s" tests="0" errors="1"><error message="setup failed">why</error></testsuite>'
    merged, root = merge(tmp_path, content)
    assert (merged.counts.errors, merged.files[0].problem) == (1, "")
    assert root.findtext("testsuite/error") == "why"
    assert root.find("testsuite/testcase[@name='(suite)']/error") is not None


TEXT = "Fehler größer 错误 ошибка"
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "gb18030", "utf-32"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_any_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    declared = f'<?xml version="1.0" encoding="{encoding}"?>'
    content = declared + suite(f'<testcase name="x"><failure message="{TEXT}"/></testcase>')
    merged, root = merge(tmp_path, content.encode(encoding))
    assert merged.files[0].problem == ""
    assert next(root.iter("failure")).get("message") == TEXT


@pytest.mark.parametrize("declared", ["utf-8", "UTF-16", "rot13", "no-such", "unicode_escape", "x" * 30])
def test_a_wrong_declaration_and_bytes_of_another_encoding_cost_characters_and_no_case(
    declared: str, tmp_path: Path
) -> None:
    content = f'<?xml version="1.0" encoding="{declared}"?>'.encode() + suite(
        '<testcase name="x"><failure message="größer"/></testcase>'
    ).encode("latin-1")
    merged, root = merge(tmp_path, content)
    assert merged.files[0].problem == ""
    assert next(root.iter("failure")).get("message") == "gr\ufffd\ufffder"


def test_what_xml_cannot_hold_is_replaced_raw_or_referenced(tmp_path: Path) -> None:
    content = suite('<testcase name="a\x1bb&#0;c&#x1B;d&#xD800;e&#99999999;f&#65;&#x1F600;"/>', tests=1)
    merged, root = merge(tmp_path, "\n \ufeff" + content)
    assert merged.files[0].problem == ""
    assert next(root.iter("testcase")).get("name") == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdfA\N{GRINNING FACE}"


@pytest.mark.parametrize("offset", range(14))
def test_a_reference_is_found_across_the_pieces_a_file_is_read_in(
    offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(junit_stream, "CHUNK_BYTES", 30 + offset)
    merged, root = merge(tmp_path, suite('<testcase name="a&#x0000001B;b错错"/>'))
    assert merged.files[0].problem == ""
    assert next(root.iter("testcase")).get("name") == "a\ufffdb错错"


def test_a_tag_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit_stream, "MAX_TAG_BYTES", 1 << 16)
    monkeypatch.setattr(junit_stream, "CHUNK_BYTES", 1 << 12)
    merged, _root = merge(
        tmp_path, '<testsuite name="' + "x" * (1 << 18) + '"><testcase name="x"/></testsuite>'
    )
    assert "longer than" in merged.files[0].problem


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(cases: int) -> int:
        source = tmp_path / "in.xml"
        with source.open("w") as stream:
            stream.write('<testsuite name="s">')
            for number in range(cases):
                stream.write(f'<testcase name="case {number}"><failure>{"long " * 60}</failure></testcase>')
            stream.write("</testsuite>")
        tracemalloc.start()
        merge_junit(tmp_path / "out.xml", [source], mask=Masker(()))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(10)
    assert peak(12_000) < 1.5 * peak(4_000)


def _elements() -> Iterator[st.SearchStrategy[str]]:
    text = st.text(st.characters(codec="utf-8"), max_size=12)
    quoted = text.map(lambda value: value.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;"))
    yield st.sampled_from(
        ["<failure/>", "<error message='m'>t</error>", "<skipped/>", "<flakyFailure/>", "<odd/>"]
    )
    yield quoted
    yield quoted.map(lambda value: f'<property name="{value}" value="{value}"/>')
    yield st.sampled_from(
        [
            "]]>",
            "<![CDATA[<failure/>]]>",
            "<!-- c -->",
            "<?pi x?>",
            "&#27;",
            "\x00",
            "&unknown;",
            "<",
            "</testcase>",
        ]
    )


pieces = st.lists(st.one_of(*_elements()), max_size=5).map("".join)
cases_of_any_kind = st.builds(
    lambda name, body: f'<testcase name="{name}">{body}</testcase>', st.sampled_from("abc"), pieces
)


@given(st.lists(cases_of_any_kind, max_size=4).map("".join), st.integers(0, 400))
@example("<testcase name='a'><failure/></testcase>", 400)
@settings(max_examples=200, deadline=None)
def test_whatever_is_in_it_the_merged_file_is_sound_and_its_counts_are_those_of_its_cases(
    body: str, cut: int
) -> None:
    content = suite(body)[:cut].encode("utf-8", "replace")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        merged, root = merge(folder, content)
        again = merge_junit(folder / "again.xml", [folder / "out.xml"], mask=Masker(()))
    assert (again.counts, again.files[0].problem) == (merged.counts, "")
    marks = {"failure", "error", "skipped"}
    green = sum(marks.isdisjoint(child.tag for child in case) for case in root.iter("testcase"))
    counts = merged.counts
    assert green == counts.tests - counts.failures - counts.errors - counts.skipped
    if merged.files[0].problem:
        assert counts.errors


NAMESPACES = ("", "x:", "a-b:", "d")
MARKED = {"failure": "failures", "error": "errors"}


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, bool, bool]:
    """A JUnit document in any namespaces, whether something in it failed, and whether a case passed."""
    found = {"failed": False, "passed": False}

    def tag(name: str, body: str, attributes: str = "") -> str:
        prefix = draw(st.sampled_from(NAMESPACES))
        if prefix == "d":
            return f'<{name} xmlns="urn:d"{attributes}>{body}</{name}>'
        return f"<{prefix}{name}{attributes}>{body}</{prefix}{name}>"

    def wrapped(body: str) -> str:
        for _level in range(draw(st.integers(0, 3))):
            body = tag(draw(st.sampled_from(["wrap", "group", "step"])), body)
        return body

    def case() -> str:
        end = draw(st.sampled_from(["pass", "failure", "error", "skipped", "stated"]))
        output = tag("system-out", draw(st.sampled_from(["", "<![CDATA[<error/>]]>", "&lt;failure/>"])))
        body = [output, wrapped(""), tag("properties", "")]
        if end in {"failure", "error", "skipped"}:
            body.append(wrapped(tag(end, "text")))
        found["failed"] |= end in {"failure", "error", "stated"}
        found["passed"] |= end == "pass"
        stated = ' status="failed"' if end == "stated" else ' status="run"'
        return wrapped(tag("testcase", "".join(draw(st.permutations(body))), f' name="c"{stated}'))

    def suite_of(depth: int) -> str:
        parts = [case() for _number in range(draw(st.integers(0, 2)))]
        if depth:
            parts += [suite_of(depth - 1) for _number in range(draw(st.integers(0, 2)))]
        if draw(st.integers(0, 9)) == 0:
            found["failed"] = True
            parts.append(wrapped(tag(draw(st.sampled_from(sorted(MARKED))), "")))
        said = ""
        if draw(st.integers(0, 9)) == 0:
            found["failed"] = True
            said = f' {draw(st.sampled_from(sorted(MARKED.values())))}="{draw(st.integers(1, 3))}"'
        return wrapped(tag("testsuite", "".join(draw(st.permutations(parts))), said))

    names = ' xmlns:x="urn:x" xmlns:a-b="urn:ab"'
    return tag("testsuites", suite_of(2), names), found["failed"], found["passed"]


@given(documents(), st.sampled_from(["utf-8", "utf-16", "utf-16-be", "utf-8-sig", "gb18030", "utf-7"]))
@settings(max_examples=200, deadline=None)
def test_a_failure_counts_in_any_namespace_at_any_depth_and_in_any_order(
    document: tuple[str, bool, bool], encoding: str
) -> None:
    text, failed, passed = document
    content = f'<?xml version="1.0" encoding="{encoding}"?>{text}'.encode(encoding)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        merged, root = merge(folder, content)
        again = merge_junit(folder / "again.xml", [folder / "out.xml"], mask=Masker(()))
    bad = bool(merged.counts.failures + merged.counts.errors or merged.files[0].problem)
    assert bad == failed
    if bad:
        assert any(True for name in MARKED for _mark in root.iter(name))
    assert (merged.counts.tests - merged.counts.skipped > 0) == (passed or failed)
    assert again.counts == merged.counts


@pytest.mark.parametrize("name", ["broken", "Failed", "x:aborted", "time-out", "exception", "panic"])
def test_an_element_whose_name_says_that_a_test_did_not_pass_counts(tmp_path: Path, name: str) -> None:
    mark = f'<{name} xmlns:x="urn:x"/>'
    merged, root = merge(
        tmp_path, f'<testsuite><testcase name="c"><wrap>{mark}</wrap></testcase></testsuite>'
    )
    assert (merged.counts.tests, merged.counts.errors) == (1, 1)
    assert root.find(".//error") is not None
    merged, _root = merge(tmp_path, f'<testsuite><testcase name="c"/>{mark}</testsuite>')
    assert merged.counts.errors == 1
    merged, _root = merge(
        tmp_path,
        f'<testsuite><testcase name="c"><system-out>{mark}</system-out><flakyFailure>{mark}</flakyFailure>'
        f"<timeouts/><skippedExceptions/></testcase></testsuite>",
    )
    assert merged.counts.errors == 0


@given(documents(), st.data())
@settings(max_examples=100, deadline=None)
def test_no_truncation_of_a_document_is_green(document: tuple[str, bool, bool], data: st.DataObject) -> None:
    text = document[0]
    with tempfile.TemporaryDirectory() as name:
        merged, _root = merge(Path(name), text[: data.draw(st.integers(0, len(text) - 1))])
    assert merged.files[0].problem
    assert merged.counts.errors


def test_quoted_cases_prove_nothing_and_cases_in_cases_keep_their_own_failures(tmp_path: Path) -> None:
    quoted = '<testsuite name="q"><testcase name="in"/></testsuite>'
    merged, _root = merge(tmp_path, suite(f"<system-out>{quoted}</system-out>"))
    assert (merged.counts.tests, merged.files[0].problem) == (0, "")
    nested = '<testcase name="outer"><testcase name="inner"/><failure/></testcase><testcase name="next"/>'
    merged, _root = merge(tmp_path, suite(nested))
    assert merged.failed == ("s: outer",)
    assert merged.counts.tests == 3


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", codecs.BOM_UTF16_LE, codecs.BOM_UTF8, b"<?xml version='1.0' encoding='gbk'?>"]),
)
@settings(max_examples=150, deadline=None)
def test_rubbish_is_told_and_nothing_breaks(data: bytes, head: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        merged, root = merge(Path(name), head + data)
    assert merged.counts.errors == 1
    assert root.get("errors") == "1"


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        merge_junit(tmp_path / "out.xml", [tmp_path / "absent.xml"], mask=Masker(()))
    assert not list(tmp_path.iterdir()), "nothing half-written is left"
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError):
        merge_junit(tmp_path / "file" / "out.xml", [SAMPLES / "ctest.xml"], mask=Masker(()))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot replace this"):
        merge_junit(tmp_path / "pipe", [SAMPLES / "ctest.xml"], mask=Masker(()))
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "claim",
    [
        '<property name="evidence" value="hardware"/>',
        '<property name="Evidence" value=" HARDWARE "/>',
        '<property value="hardware" name="evidence"></property>',
        '<property name="evidence">hardware</property>',
        '<x:property xmlns:x="urn:x" name="evidence" value="hardware"/>',
        '<property xmlns:x="urn:x" name="evidence" x:value="hardware"/>',
        '<property name="evidence" Value="hardware"/>',
        '<property name="evidence"><b>hardware</b></property>',
    ],
)
def test_a_junit_file_cannot_claim_hardware_evidence(tmp_path: Path, claim: str) -> None:
    source, target = tmp_path / "in.xml", tmp_path / "out.xml"
    source.write_text(
        f'<testsuite name="s"><properties>{claim}</properties><testcase name="c">'
        f'<properties>{claim}<property name="device" value="hardware"/></properties></testcase></testsuite>'
    )
    merge_junit(target, [source], mask=Masker(()))
    text = target.read_text("utf-8")
    assert text.count("claimed") == 2
    assert text.lower().count("hardware") == 1, "other properties are copied unchanged"


def test_elements_in_a_property_cannot_divide_a_claim_of_hardware_evidence(tmp_path: Path) -> None:
    source, target = tmp_path / "in.xml", tmp_path / "out.xml"
    claims = '<property name="evidence">hard<b/>ware</property><property name="evidence">a log</property>'
    source.write_text(
        f'<testsuite name="s"><properties>{claims}</properties><testcase name="c"/></testsuite>'
    )
    merge_junit(target, [source], mask=Masker(()))
    texts = ["".join(one.itertext()) for one in ET.parse(target).iter("property")]
    assert texts == ["claimedclaimed", "a log"]


def test_credentials_in_the_files_of_others_are_not_copied(tmp_path: Path) -> None:
    mask = Masker(["canary-of-this-machine"])
    (tmp_path / "in.xml").write_text(
        '<testsuite name="s"><properties><property name="env.WANDB_API_KEY" value="canary1"/>'
        '<property name="index" value="https://u:canary2@h/simple"/><property name="os" value="linux"/>'
        '</properties><testcase name="a" classname="canary-of-this-machine">'
        '<failure message="https://u:canary3@h">export API_TOKEN=canary4-0123</failure>'
        "<system-out>canary-of-\nthis-machine &amp; Authorization: Basic dTpjYW5hcnk1\nkept</system-out>"
        "</testcase></testsuite>"
    )
    merge_junit(tmp_path / "out.xml", [tmp_path / "in.xml"], mask=mask)
    merged = (tmp_path / "out.xml").read_text()
    for secret in ("canary", "this-machine", "dTpjYW5hcnk1"):
        assert secret not in merged
    for kept in ('name="env.WANDB_API_KEY"', "https://***@h/simple", "linux", "export API_TOKEN=***", "kept"):
        assert kept in merged
