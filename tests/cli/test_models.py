"""Models on the command line, up to the work of other processes."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.endpoints.folder import EndpointFolder, EndpointStatus
from timonel.endpoints.spec import EndpointSpec
from timonel.models import ModelVersion
from timonel.storage import find_workspace
from timonel.storage.document_store import FolderDocuments
from timonel.tracking import start_run


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("convert", "model", "--format", "tfjs", "--c-header"), "--c-header is for LiteRT"),
        (("convert", "other"), "no workspace"),
        (("bench", "model", "--formats", "litert8", "--data", "d"), "unknown format 'litert8'"),
        (("convert", "model", "--page"), "--page needs a model of images"),
        (("bench", "model", "--plot", "formats.gif"), "the plot is a PNG file"),
        pytest.param(
            ("optimize", "model", "--samples", "none"), "cannot read", marks=pytest.mark.process
        ),
    ],
)
def test_folders_need_no_workspace(
    arguments: tuple[str, ...], problem: str, here: Path, timonel: Timonel
) -> None:
    (here / "model").mkdir()
    (here / "model" / "saved_model.pb").write_bytes(b"")
    done = timonel("models", *arguments)
    assert done.exit_code == 2
    assert problem in done.error_line


def test_the_export_of_a_job_of_a_cluster_is_deployed_there(
    timonel: Timonel, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    workspace = find_workspace(f"memory://{uuid.uuid4().hex}")
    version = ModelVersion(name="photos", number=1, path=workspace.models / "photos/1")
    version.path.mkdir(parents=True)
    (version.path / "model.py").write_text("")
    monkeypatch.setattr("timonel.export", lambda *_, **__: version)
    for engine, command in (
        ("local", "serve photos"),
        ("kubernetes", "deploy photos --on kubernetes"),
    ):
        start_run(workspace, "train", run_id=f"train-{engine}", engine=engine)
        monkeypatch.setattr(ModelVersion, "run_id", f"train-{engine}")
        done = timonel("-w", workspace.uri, "export", "--name", "photos")
        assert f"{workspace.uri}/models/photos/1\n" in done.out
        assert str(workspace.root) not in done.out
        assert done.out.splitlines()[-1] == f"next: timonel {command}"


def test_an_alias_is_moved_listed_and_removed(timonel: Timonel, here: Path) -> None:
    workspace = find_workspace(here / ".timonel")
    for number in (1, 2):
        (workspace.models / f"cats/{number}").mkdir(parents=True)
        (workspace.models / f"cats/{number}/model.py").write_text("")
    assert timonel("models", "alias", "cats", "champion", "1").out == "cats@champion: version 1\n"
    moved = timonel("models", "alias", "cats", "champion", "latest")
    assert moved.out == "cats@champion: version 2, before 1\n"
    head, first, second = timonel("models", "alias", "cats").out.splitlines()
    assert head.split() == ["ALIAS", "VERSION", "BEFORE", "BY", "AT", "REASON"]
    assert (first.split()[:3], second.split()[:3]) == (
        ["champion", "2", "1"],
        ["champion", "1", "-"],
    )
    listing = json.loads(timonel("models", "list", "cats", "--json").out)
    assert [each["aliases"] for each in listing["models"]] == [[], ["champion"]]
    shown = json.loads(timonel("models", "show", "cats@champion", "--json").out)
    assert (shown["version"], shown["aliases"]) == (2, ["champion"])
    removed = timonel("models", "alias", "cats", "champion", "--remove")
    assert removed.out == "cats@champion: removed, before 2\n"
    history = json.loads(timonel("models", "alias", "cats", "champion", "--json").out)["history"]
    assert [each["version"] for each in history] == [1, 2, None]
    for arguments, problem in {
        ("cats", "latest", "1"): "it always names the newest version",
        ("cats", "7", "1"): "invalid alias '7'",
        ("cats", "champion", "9"): "cats has no version 9",
        ("cats", "--remove"): "--remove takes an alias",
        ("dogs",): "no model 'dogs'",
    }.items():
        assert problem in timonel("models", "alias", *arguments).error_line


def test_a_version_that_an_endpoint_uses_is_not_deleted(timonel: Timonel, here: Path) -> None:
    workspace = find_workspace(here / ".timonel")
    for number in (1, 2, 3, 4):
        (workspace.models / f"iris/{number}").mkdir(parents=True)
    folder = EndpointFolder(FolderDocuments(workspace.endpoints), "flowers")
    spec = EndpointSpec(name="flowers", model="iris", port=8501, traffic={"percent": {1: 100}})
    folder.add(spec, "deploy", after=0)
    folder.write_status(EndpointStatus(routed=1))
    refused = timonel("models", "delete", "iris/1", "--yes")
    assert refused.exit_code == 2
    assert "model iris/1: it answers 100 % of the endpoint flowers" in refused.error_line
    traffic = {"percent": {2: 100, 1: 0}, "labels": {"canary": 3}}
    by_path = {"model": str(workspace.models / "iris"), "traffic": traffic}
    folder.add(spec.model_validate({**spec.model_dump(), **by_path}), "split", after=1)
    # Revision 1 is in effect until version 2 is ready.
    for number in (1, 3):
        refused = timonel("models", "delete", f"iris/{number}", "--yes")
        assert f"iris/{number}: the endpoint flowers uses it" in refused.error_line
    assert timonel("models", "delete", "iris/4", "--yes").exit_code == 0
    folder.write_status(EndpointStatus(routed=2))
    assert timonel("models", "delete", "iris/1", "--yes").exit_code == 0
