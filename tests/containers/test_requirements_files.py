from __future__ import annotations

from pathlib import Path

import pytest

from timonel.containers.requirements_files import RequirementsFile, read_requirements
from timonel.errors import NotFoundError, SpecError


def included(top: Path) -> list[tuple[str, bool]]:
    """Names of the included files, and whether they are constraints."""
    return [(each.path.name, each.is_constraints) for each in read_requirements(top)[1:]]


def test_included_requirements_count(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    top = tmp_path / "top.txt"
    top.write_text("-r sub/a.txt\n--constraint=c.txt\n")
    (tmp_path / "sub/a.txt").write_text("-c b.txt\n-r ../top.txt\n")
    found = set()
    for content in ("1", "2"):
        for name in ("sub/b.txt", "c.txt"):
            (tmp_path / name).write_text(f"idna=={content}\n")
            if (tmp_path / "c.txt").exists():
                found.add("".join(each.text for each in read_requirements(top)))
    assert len(found) == 3


def test_included_files_must_exist_on_this_machine(tmp_path: Path) -> None:
    top = tmp_path / "top.txt"
    top.write_text("-r https://host/a.txt\n")
    with pytest.raises(SpecError, match="download it"):
        read_requirements(top)
    top.write_text("-r none.txt\n")
    with pytest.raises(NotFoundError, match="no file at"):
        read_requirements(top)


@pytest.mark.parametrize(
    "line",
    [
        '-r "my reqs.txt"',
        "-r 'my reqs.txt'  # comment",
        "-r my reqs.txt",
        r"-r my\ reqs.txt",
        '--requirement="my reqs.txt"',
        '--requirement "my reqs.txt"',
        '-r \\\n  "my reqs.txt"',
    ],
)
def test_names_of_included_files_may_have_spaces(line: str, tmp_path: Path) -> None:
    (tmp_path / "my reqs.txt").write_text("idna\n")
    top = tmp_path / "top.txt"
    top.write_text(f"# -r none.txt\n{line}\n")
    assert included(top) == [("my reqs.txt", False)]


def test_names_of_included_files_may_have_an_apostrophe(tmp_path: Path) -> None:
    (tmp_path / "ada's.txt").write_text("idna\n")
    (tmp_path / "top.txt").write_text("-r ada's.txt\n")
    assert included(tmp_path / "top.txt") == [("ada's.txt", False)]


def test_files_that_constraints_include_are_constraints(tmp_path: Path) -> None:
    (tmp_path / "top.txt").write_text("-c a.txt\n-r b.txt\n")
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("idna\n")
    assert included(tmp_path / "top.txt") == [("a.txt", True), ("b.txt", True), ("b.txt", False)]


def test_lines_are_joined_and_have_no_comments() -> None:
    text = "a[b]\\\n  ==1 # c \n\n  # d \\\ne --hash=1 \\\n    --hash=2\nf#g\n"
    lines = RequirementsFile(Path(), text).lines
    assert [line.split() for line in lines] == [
        ["a[b]", "==1"], ["e", "--hash=1", "--hash=2"], ["f#g"],
    ]  # fmt: skip


def test_a_byte_order_mark_belongs_to_no_name(tmp_path: Path) -> None:
    (tmp_path / "top.txt").write_bytes(b"\xef\xbb\xbfidna\n")
    assert read_requirements(tmp_path / "top.txt")[0].lines == ["idna"]
