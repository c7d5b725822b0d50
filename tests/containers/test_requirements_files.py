from __future__ import annotations

from pathlib import Path

import pytest

from timonel.containers.own_requirements import OwnRequirements
from timonel.containers.requirements_files import (
    RequirementsFile,
    local_digests,
    local_paths,
    read_requirements,
)
from timonel.errors import InputError, NotFoundError, SpecError


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


@pytest.mark.parametrize("order", ["little", "big"])
def test_utf_16_with_a_byte_order_mark_is_read(order: str, tmp_path: Path) -> None:
    mark, name = (b"\xff\xfe", "utf-16-le") if order == "little" else (b"\xfe\xff", "utf-16-be")
    top = tmp_path / "top.txt"
    top.write_bytes(mark + "timonel\r\n-r a.txt\r\nidna \\\r\n ==3.7\r\n".encode(name))
    (tmp_path / "a.txt").write_text("")
    files = read_requirements(top)
    assert [line.split() for line in files[0].lines] == [
        ["timonel"], ["-r", "a.txt"], ["idna", "==3.7"],
    ]  # fmt: skip
    assert len(files) == 2
    assert OwnRequirements.of(files) is not None


@pytest.mark.parametrize("content", ["timonel\n".encode("utf-16-le"), b"-r a\0b.txt\n"])
def test_other_encodings_are_refused(content: bytes, tmp_path: Path) -> None:
    top = tmp_path / "top.txt"
    top.write_bytes(content)
    with pytest.raises(SpecError, match=r"top\.txt is no text: .*: save it as UTF-8"):
        read_requirements(top)


def test_files_may_include_each_other_to_any_depth(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
    (tmp_path / "1500.txt").write_text("idna\n")
    assert len(read_requirements(tmp_path / "0.txt")) == 1501


@pytest.mark.parametrize("line", ["-e ./pk", "--editable ./pk", "--editable=./pk", "-e  ./pk # x"])
def test_editable_requirements_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "top.txt").write_text("-r a.txt\n")
    (tmp_path / "a.txt").write_text(f"{line}\n")
    with pytest.raises(SpecError, match=r"the editable requirement \./pk, .*: build a wheel"):
        read_requirements(tmp_path / "top.txt")


@pytest.mark.parametrize(
    "line",
    [
        "-r https://ada:TOKEN@host/a.txt",
        "-r https://TOKEN@host/a.txt",
        "-e git+https://ada:TOK@EN@host/a.git",
        "timonel[ @ https://ada:TOKEN@host/y.whl",
    ],
)
def test_messages_have_no_credentials(line: str, tmp_path: Path) -> None:
    (tmp_path / "top.txt").write_text(f"{line}\n")
    with pytest.raises(SpecError) as error:
        OwnRequirements.of(read_requirements(tmp_path / "top.txt"))
    assert "***@host" in str(error.value)
    assert "TOK" not in str(error.value)
    assert "ada" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "./wheels/a-1-py3-none-any.whl",
        "wheels/a-1-py3-none-any.whl ; python_version > '3'",
        "wheels/a-1-py3-none-any.whl[some]",
        "wheels/a-1-py3-none-any.whl --hash=sha256:1",
        "a @ ./wheels/a-1-py3-none-any.whl",
        "a[b, c]@./wheels/a-1-py3-none-any.whl",
        "a @ file:{folder}/wheels/a-1-py3-none-any.whl#sha256=1",
        "a @ file://{folder}/wheels/a-1-py3-none-any.whl ; python_version > '3'",
        "a @ file://${{HERE}}/wheels/a-1-py3-none-any.whl",
        "file://localhost{folder}/wheels/a-1-py3-none-any.whl",
        "{folder}/wheels/a-1-py3-none-any.whl",
        "a-2-py3-none-any.whl",
        "--find-links wheels",
        "--find-links=./wheels",
        "-f wheels",
        "-f file://{folder}/wheels",
        "-i file://{folder}/wheels",
        "--extra-index-url=file://{folder}/wheels",
    ],
)
def test_contents_of_named_files_and_folders_count(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my project"
    (folder / "wheels").mkdir(parents=True)
    monkeypatch.setenv("HERE", str(folder))
    top = folder / "top.txt"
    top.write_text(f"-r b.txt\n{line.format(folder=folder)}\nidna\n")
    (folder / "b.txt").write_text("")
    digests = set()
    for content in ("1", "2"):
        for name in ("a-2-py3-none-any.whl", "wheels/a-1-py3-none-any.whl"):
            (folder / name).write_text(content)
        digests.add(tuple(local_digests(local_paths(read_requirements(top)))))
    assert len(digests) == 2


def test_names_of_packages_are_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "idna").mkdir()
    (tmp_path / "top.txt").write_text("idna\nidna==3.7 ; python_version > '3'\nb @ https://h/b\n")
    assert local_paths(read_requirements(tmp_path / "top.txt")) == []


def test_a_named_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*gone"):
        local_digests([tmp_path / "gone"])
