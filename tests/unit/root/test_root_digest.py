import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.digest import (
    VerifiedContents,
    canonical_json,
    digest_bytes,
    digest_file,
    digest_json,
    digest_tree,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_order_of_keys_does_not_matter(value):
    reordered = dict(reversed(list(value.items())))
    assert digest_json(value) == digest_json(reordered)


@given(JSON, JSON)
def test_different_texts_have_different_digests(one, other):
    assert (digest_json(one) == digest_json(other)) == (canonical_json(one) == canonical_json(other))


def test_nan_has_no_canonical_form():
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_a_tree_is_its_relative_paths_and_contents(tmp_path):
    for root in (tmp_path / "one", tmp_path / "other"):
        (root / "sub").mkdir(parents=True)
        (root / "a").write_text("a")
        (root / "sub" / "b").write_text("b")

    def tree(root, names):
        return digest_tree(root, [root / name for name in names])

    one = tree(tmp_path / "one", ["a", "sub/b"])
    assert one == tree(tmp_path / "other", ["sub/b", "a"])
    (tmp_path / "other" / "a").rename(tmp_path / "other" / "c")
    assert one != tree(tmp_path / "other", ["c", "sub/b"])


def test_a_file_larger_than_a_chunk(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * (1 << 21))
    assert digest_file(tmp_path / "big") != digest_file(Path(__file__))


def test_a_verified_file_that_was_edited_is_read_again(tmp_path: Path):
    file, verified = tmp_path / "file", VerifiedContents()
    file.write_bytes(b"content")
    before = file.stat()
    assert verified.has_digest(file, digest_bytes(b"content"))
    assert verified.contains(file, digest_bytes(b"content"))
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not verified.contains(file, digest_bytes(b"content"))
    assert not verified.has_digest(file, digest_bytes(b"content"))
    assert verified.has_digest(file, digest_bytes(b"CONTENT"))


def test_only_regular_files_are_read(tmp_path: Path):
    pipe, verified = tmp_path / "pipe", VerifiedContents()
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "missing", Path("/dev/null")):
        assert not verified.has_digest(path, digest_bytes(b""))
        verified.add(path, "content")
        assert not verified.contains(path, "content")
