from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import NotFoundError, SpecError
from timonel.models import ModelRepository
from timonel.serving.references import resolve, split_reference, version_of, workspace_for
from timonel.serving.settings.models import Aliased, Latest, Specific
from timonel.storage.aliases import Aliases


def make(base, *versions):
    for version in versions:
        (base / version).mkdir(parents=True)
        (base / version / "saved_model.pb").write_text("")
    return base


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits", ("digits", None)),
        ("digits/3", ("digits", 3)),
        ("digits/x", ("digits/x", None)),
        ("a/b/3", ("a/b/3", None)),
        ("/3", ("/3", None)),
    ],
)
def test_splitting(text, expected):
    assert split_reference(text) == expected


def test_names_versions_and_folders(workspace, tmp_path):
    digits = make(workspace.models / "digits", "1", "3")
    other = make(tmp_path / "elsewhere" / "other", "7")
    found = resolve("digits", workspace)
    assert (found.name, found.base_path, found.policy) == ("digits", str(digits), Latest())
    assert resolve("digits/3", workspace).policy == Specific(versions=(3,))
    assert resolve("digits", workspace, 1).policy == Specific(versions=(1,))
    for reference in (other, str(other)):
        found = resolve(reference, workspace)
        assert (found.name, found.base_path, found.policy) == ("other", str(other), Latest())
    found = resolve(other / "7", workspace)
    assert (found.name, found.base_path) == ("other", str(other))
    assert found.policy == Specific(versions=(7,))


def test_an_alias_is_served_wherever_it_points(workspace, tmp_path):
    digits = make(workspace.models / "digits", "1", "3")
    other = make(tmp_path / "elsewhere" / "other", "7", "8")
    Aliases(digits).move("champion", 1)
    Aliases(other).move("best", 7)
    for reference, base, alias in [
        ("digits@champion", digits, "champion"),
        (f"{other}@best", other, "best"),
        ("s3://bucket/models/digits@any", "s3://bucket/models/digits", "any"),
    ]:
        found = resolve(reference, workspace)
        assert found.policy == Aliased(alias=alias)
        assert (found.name, found.base_path) == (Path(base).name, str(base))
    assert resolve("digits@latest", workspace).policy == Latest()
    assert resolve("digits@champion", workspace, 3).policy == Specific(versions=(3,))
    assert version_of(resolve("digits@champion", workspace)) == 1
    assert version_of(resolve("digits/3", workspace)) == 3
    assert version_of(resolve("digits", workspace)) is None
    with pytest.raises(NotFoundError, match="digits has no alias best: its aliases are: champion"):
        resolve("digits@best", workspace)


def test_what_is_not_there(workspace, tmp_path):
    with pytest.raises(
        NotFoundError, match="no model 'digits' in this workspace: publish one with"
    ):
        resolve("digits", workspace)
    make(workspace.models / "digits", "1", "3")
    (workspace.models / ".tmp-1-x-digits").mkdir()
    loose = make(tmp_path, "loose") / "loose"
    for reference, message in [
        ("cats", "no model 'cats' in this workspace: the models are: digits$"),
        ("digits/2", "digits has no version 2 in .*: it has 1, 3"),
        (loose, "is not a version number"),
        (tmp_path / "nope", "no folder at"),
        (tmp_path, f"the folder {tmp_path} has no version such as 1/saved_model.pb: publish"),
    ]:
        with pytest.raises(NotFoundError, match=message):
            resolve(reference, workspace)


def test_a_plain_name_is_no_folder_of_raw_files(workspace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for label in ("7", "9"):
        (tmp_path / "digits" / label).mkdir(parents=True)
        (tmp_path / "digits" / label / "image.png").write_bytes(b"")
    repository = ModelRepository(workspace.models)
    for reference in ("digits", "digits/9"):
        for find in (repository.resolve, lambda text: resolve(text, workspace)):
            with pytest.raises(NotFoundError) as caught:
                find(reference)
            assert str(caught.value) == (
                f"no model 'digits' in this workspace, and the folder {reference} has no version "
                "such as 1/saved_model.pb: publish one with 'timonel export --name digits', or a "
                "model made elsewhere with 'timonel models add digits PATH'"
            )
    with pytest.raises(NotFoundError, match="no workspace"):
        workspace_for(tmp_path / "none", ["digits"])
    assert not (tmp_path / "none").exists()
    make(tmp_path / "cats", "1")
    assert resolve("cats", workspace).base_path == str(tmp_path / "cats")
    assert resolve("cats/1", workspace).policy == Specific(versions=(1,))
    assert str(repository.resolve("cats")) == "cats/1"


def test_a_workspace_is_made_only_for_a_folder_that_is_there(workspace, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert workspace_for(workspace, ["digits"]) is workspace
    with pytest.raises(NotFoundError, match="no workspace"):
        workspace_for(None, ["digits"])
    assert not list((tmp_path / "here").iterdir())
    made = workspace_for(None, [make(tmp_path / "elsewhere" / "other", "7")])
    assert made.root == tmp_path / "here" / ".timonel"


def test_a_name_for_a_folder_is_refused_with_what_to_do_instead(workspace, tmp_path, monkeypatch):
    folder = make(tmp_path / "second", "7")
    for text in (f"digits={folder}", "digits=s3://bucket/second"):
        place = text.partition("=")[2]
        said = (
            f"{text} is neither a model nor a folder of versions nor its URI: a folder is served "
            f"under its own name: use {place} without digits=, or a link named "
            "digits"
        )
        for given in (workspace, None):
            with pytest.raises(SpecError) as caught:
                workspace_for(given, ["other", text])
            assert str(caught.value) == said
    (tmp_path / "digits").symlink_to(folder)
    assert resolve(tmp_path / "digits", workspace).name == "digits"
    assert resolve(folder, workspace).name == "second"
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run=1", "7")
    assert workspace_for(workspace, ["run=1"]) is workspace
    assert workspace_for(workspace, ["s3://bucket/run=1"]) is workspace
