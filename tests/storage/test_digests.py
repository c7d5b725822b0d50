from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import CorruptError
from timonel.storage import digest_bytes, digest_file, digest_tree, verify_file
from timonel.storage.digests import digest_lines

part = st.text(
    st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in {".", ".."} and not name.startswith(".tmp-"))
trees = st.dictionaries(part, st.binary(max_size=50), max_size=6)


def written(root: Path, tree: dict[str, bytes]) -> Path:
    root.mkdir()
    for name, content in tree.items():
        (root / name).write_bytes(content)
    return root


@given(st.binary(max_size=10_000))
def test_bytes_and_files_have_one_digest(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("d") / "file"
    path.write_bytes(content)
    assert digest_file(path) == digest_bytes(content)
    assert digest_bytes(content) == f"sha256:{hashlib.sha256(content).hexdigest()}"
    verify_file(path, digest_bytes(content))


@given(trees, trees)
def test_trees_have_one_digest_if_and_only_if_they_are_equal(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, bytes], two: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    first, second = written(folder / "1", one), written(folder / "2", two)
    assert (digest_tree(first) == digest_tree(second)) == (one == two)
    reordered = written(folder / "3", dict(reversed(one.items())))
    assert digest_tree(first) == digest_tree(reordered)


def test_times_do_not_count(tmp_path: Path) -> None:
    root = written(tmp_path / "1", {"a": b"1"})
    before = digest_tree(root)
    os.utime(root / "a", (0, 0))
    assert digest_tree(root) == before


def test_a_name_cannot_pass_for_two_files(tmp_path: Path) -> None:
    two = written(tmp_path / "1", {"a": b"1", "b": b"2"})
    # With names as they are, this one file's line would be the lines of both.
    one = written(tmp_path / "2", {f"a\n{digest_bytes(b'2')} 1 b": b"1"})
    assert digest_tree(one) != digest_tree(two)
    escaped, plain = {"a\\nb": b""}, {"a\nb": b""}
    assert digest_tree(written(tmp_path / "3", escaped)) != digest_tree(
        written(tmp_path / "4", plain)
    )


def test_a_tree_is_read_deep_and_without_what_is_aside(tmp_path: Path) -> None:
    root = written(tmp_path / "1", {"manifest.json": b"{}"})
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "deep" / "file").write_bytes(b"1")
    expected = digest_lines([f"{digest_bytes(b'1')} 1 sub/deep/file"])
    assert digest_tree(root, exclude=["manifest.json"]) == expected
    (root / ".tmp-1-a-b").mkdir()
    (root / ".tmp-1-a-b" / "file").write_bytes(b"2")
    assert digest_tree(root, exclude=["manifest.json"]) == expected
    assert digest_tree(root) != expected


def test_a_name_that_is_no_text_has_a_digest(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_bytes(b"1")
    assert digest_tree(tmp_path).startswith("sha256:")


def test_another_content_or_none_is_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="is missing"):
        verify_file(tmp_path / "none", "sha256:0")
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(CorruptError, match=f"has digest {digest_bytes(b'1')}, not sha256:0"):
        verify_file(tmp_path / "file", "sha256:0")
