"""Read requirements files with all files that they include, as pip and uv do."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import url2pathname

from timonel.containers.credentials import without_user
from timonel.errors import InputError, NotFoundError, SpecError
from timonel.storage.digests import digest_file, digest_tree

_INCLUDED = re.compile(r"(?:-([rc])|--(requirement|constraint)(?=[ \t=]))[ \t]*=?[ \t]*(.+)")
_EDITABLE = re.compile(r"(?:-e|--editable(?=[ \t=]))[ \t]*=?[ \t]*(.*)")
_LINKS = re.compile(r"(?:-[fi]|--(?:find-links|(?:extra-)?index-url)(?=[ \t=]))[ \t]*=?[ \t]*(.+)")
_DIRECT = re.compile(r"\w[\w.-]*[ \t]*(?:\[[^]]*\][ \t]*)?@[ \t]*(.+)")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tgz|tbz|txz|tar(?:\.\w+)?)$", re.IGNORECASE)
_END = re.compile(r"[ \t]*;.*|[ \t]+--.*")
_EXTRAS = re.compile(r"[ \t]*\[[^]]*\]$")
_FILE_URL = re.compile(r"file:(?://(?:localhost(?=/))?)?", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_COMMENT = re.compile(r"\s#.*")


@dataclass(frozen=True)
class RequirementsFile:
    """A file of requirements, or of constraints, which limit versions and require nothing."""

    path: Path
    text: str
    is_constraints: bool = False

    @property
    def lines(self) -> list[str]:
        """Requirements and options, without comments; each is one line."""
        # A comment does not continue on the next line.
        joined = _COMMENT_LINE.sub("", self.text).replace("\\\n", " ")
        lines = (_COMMENT.sub("", line).strip() for line in joined.splitlines())
        return [line for line in lines if line]


def read_requirements(requirements: Path) -> tuple[RequirementsFile, ...]:
    """Return a requirements file and all files that it includes.

    A file that is included both as requirements and as constraints is returned twice.
    """
    found: dict[tuple[Path, bool], RequirementsFile] = {}
    waiting = [(requirements.resolve(), False)]
    while waiting:
        path, is_constraints = waiting.pop()
        if (path, is_constraints) not in found:
            file = RequirementsFile(path, _text(path), is_constraints)
            found[path, is_constraints] = file
            waiting += reversed(list(_included(file)))
    return tuple(found.values())


def local_paths(files: Iterable[RequirementsFile]) -> list[Path]:
    """Return the existing wheels, archives and folders that requirements and options name."""
    return list(dict.fromkeys(path for file in files for path in _local_paths(file)))


def local_digests(paths: Iterable[Path]) -> list[str]:
    """Return digests of the contents of files and folders."""
    try:
        return [digest_tree(path) if path.is_dir() else digest_file(path) for path in paths]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror or error}") from error


def _text(path: Path) -> str:
    if not path.is_file():
        raise NotFoundError(f"no file at {path}", hint="a requirements file includes it")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    # PowerShell writes UTF-16, which pip and uv read.
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = content.decode("utf-16" if is_wide else "utf-8-sig", errors="replace")
    if "\0" in text:
        raise SpecError(f"{path} is no text: it has NUL characters", hint="save it as UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _included(file: RequirementsFile) -> Iterator[tuple[Path, bool]]:
    """Yield the paths of the files that a file includes, and whether they are constraints."""
    path = file.path
    for line in file.lines:
        if match := _EDITABLE.fullmatch(line):
            raise SpecError(
                f"{path} has the editable requirement {without_user(match[1])}, but an image needs "
                "a copy",
                hint="build a wheel with 'uv build --wheel', and list its path",
            )
        if (match := _INCLUDED.fullmatch(line)) is None:
            continue
        name = _unquoted(match[3])
        if "://" in name:
            raise SpecError(
                f"{path} includes {without_user(name)}", hint="download it, and include the file"
            )
        is_constraints = file.is_constraints or (match[1] or match[2]).startswith("c")
        yield (path.parent / name).resolve(), is_constraints


def _local_paths(file: RequirementsFile) -> Iterator[Path]:
    for line in file.lines:
        if _INCLUDED.fullmatch(line):
            continue
        match = _LINKS.fullmatch(line) or _DIRECT.fullmatch(line)
        whole = _VARIABLE.sub(_variable, line if match is None else match[1])
        short = _END.sub("", whole)
        for text in dict.fromkeys((whole, short, _EXTRAS.sub("", short))):
            name = _unquoted(text)
            if url := _FILE_URL.match(name):
                name = url2pathname(re.split("[#?]", name[url.end() :])[0])
            elif match is None and "/" not in name and not _ARCHIVE.search(name):
                continue  # a package's name
            # uv and pip look in the current folder, and for options beside the file.
            for folder in (Path.cwd(), file.path.parent):
                path = folder / name
                with contextlib.suppress(OSError):  # a name that is too long
                    if path.exists():
                        yield path


def _variable(match: re.Match[str]) -> str:
    default = str(Path.cwd()) if match[1] == "PROJECT_ROOT" else match[0]  # as uv
    return os.environ.get(match[1], default)


def _unquoted(name: str) -> str:
    try:
        return " ".join(shlex.split(name))
    except ValueError:  # such as a name with an apostrophe
        return name
