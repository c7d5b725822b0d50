from __future__ import annotations

from pathlib import Path

import pytest

from timonel.errors import FormatError, NotFoundError, SpecError
from timonel.storage import Workspace, digest_file, write_document
from timonel.storage.aliases import Aliases
from timonel.tracking import (
    Artifact,
    ArtifactNode,
    LineageGraph,
    RunNode,
    RunRecord,
    lineage,
    start_run,
)
from timonel.tracking.resolve import observe

RAW = "sha256:" + "a" * 64
DATASET = "sha256:" + "b" * 64
EXPORT = "sha256:" + "c" * 64
MODEL = "sha256:" + "d" * 64


class Walked:
    """A workspace in which the main path was walked: raw files to model version."""

    def __init__(self, workspace: Workspace, root: Path) -> None:
        self.workspace = workspace
        self.raw = root / "digits"
        self.image = self.raw / "3" / "one.png"
        self.image.parent.mkdir(parents=True)
        self.image.write_bytes(b"png")
        self.dataset = root / "data" / "digits"
        self.write_manifest(DATASET)
        self.script = root / "train.py"
        self.script.write_text("print()")
        self.version = workspace.models / "digits" / "1"
        self.version.mkdir(parents=True)
        source = Artifact("source", self.script, digest_file(self.script))
        with start_run(workspace, "convert", run_id="convert-1", name="first") as run:
            run.input(Artifact("files", self.raw, RAW))
            run.output(Artifact("dataset", self.dataset, DATASET, "digits"))
        with start_run(workspace, "train", run_id="train-1", inputs=[source], job_id="j") as run:
            run.input(Artifact("dataset", self.dataset, DATASET))
            run.output(Artifact("savedmodel", root / "export", EXPORT))
        with start_run(workspace, "export", run_id="export-1") as run:
            # Without a digest: joined by what was at the place.
            run.input(Artifact("savedmodel", root / "export"))
            run.output(Artifact("model", self.version, MODEL, "digits"))

    def write_manifest(self, digest: str) -> None:
        write_document(self.dataset / "manifest.json", "dataset", {"digest": digest})


@pytest.fixture
def walked(workspace: Workspace, tmp_path: Path) -> Walked:
    return Walked(workspace, tmp_path)


def focus(graph: LineageGraph) -> RunRecord | Artifact:
    assert graph.focus is not None
    node = graph.nodes[graph.focus]
    return node.record if isinstance(node, RunNode) else node.artifact


def described(graph: LineageGraph) -> set[str]:
    return {
        node.record.id if isinstance(node, RunNode) else node.artifact.type
        for node in graph.nodes.values()
    }


WHOLE = {
    "files", "convert-1", "dataset", "source", "train-1", "savedmodel", "export-1", "model",
}  # fmt: skip


def test_a_version_leads_back_to_the_raw_files(walked: Walked) -> None:
    graph = lineage(walked.workspace, "digits/1", direction="upstream")
    assert described(graph) == WHOLE
    assert focus(graph).type == "model"
    assert not [each for each in graph.artifacts if each.state == "changed"]


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("digits", "model"),
        ("digits/1", "model"),
        ("{version}", "model"),
        ("{dataset}", "dataset"),
        ("{raw}", "files"),
        ("{raw}/", "files"),
        ("{image}", "files"),
        ("{raw}/3", "files"),
        ("{raw}/gone.png", "files"),
        ("{script}", "source"),
        (DATASET, "dataset"),
        ("sha256:bbbbbb", "dataset"),
        ("cccccc", "savedmodel"),
    ],
)
def test_anything_names_its_artifact(walked: Walked, ref: str, found: str) -> None:
    graph = lineage(walked.workspace, ref.format(**vars(walked)))
    assert focus(graph).type == found


@pytest.mark.parametrize(
    ("ref", "found"),
    [
        ("train-1", "train-1"),
        ("last", "export-1"),
        ("tra", "train-1"),
        ("first", "convert-1"),
    ],
)
def test_runs_are_found_too(walked: Walked, ref: str, found: str) -> None:
    assert focus(lineage(walked.workspace, ref)).id == found


def test_relative_paths_are_understood(
    walked: Walked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert focus(lineage(walked.workspace, "digits/3/one.png")).type == "files"
    assert focus(lineage(walked.workspace, "digits/3")).type == "files"
    assert focus(lineage(walked.workspace, "./digits")).type == "files"
    assert focus(lineage(walked.workspace, Path("data/digits"))).type == "dataset"


@pytest.mark.parametrize("ref", ["", "nothing", "digits/2", "/no/such/place", "eeeeee", "abc"])
def test_what_nobody_knows_is_not_found(walked: Walked, ref: str) -> None:
    with pytest.raises(NotFoundError, match="no run, model"):
        lineage(walked.workspace, ref)


def test_an_empty_workspace_knows_nothing(workspace: Workspace) -> None:
    with pytest.raises(NotFoundError):
        lineage(workspace, "last")


@pytest.mark.parametrize("ref", ["train-new", "train-n"])
def test_a_run_of_a_newer_format_is_said_to_be_one(
    ref: str, walked: Walked, caplog: pytest.LogCaptureFixture
) -> None:
    folder = walked.workspace.runs / "train-new"
    folder.mkdir()
    (folder / "run.json").write_text('{"kind": "run", "format": 99}')
    with pytest.raises(FormatError, match="a newer timonel wrote it"):
        lineage(walked.workspace, ref)
    assert caplog.messages == []


def test_what_fits_several_is_refused(walked: Walked) -> None:
    start_run(walked.workspace, "train", run_id="train-2")
    with pytest.raises(SpecError, match="matches 2"):
        lineage(walked.workspace, "train-")
    with start_run(walked.workspace, "convert", run_id="convert-2") as run:
        run.output(Artifact("dataset", "/x", "sha256:bbbbbbb0"))
    with pytest.raises(SpecError, match="matches 2"):
        lineage(walked.workspace, "bbbbbb")


def test_directions(walked: Walked) -> None:
    up = lineage(walked.workspace, str(walked.dataset), direction="upstream")
    down = lineage(walked.workspace, str(walked.dataset), direction="downstream")
    assert described(up) == {"files", "convert-1", "dataset"}
    assert described(down) == {"dataset", "train-1", "savedmodel", "export-1", "model"}


def node(graph: LineageGraph, type_: str) -> ArtifactNode:
    (found,) = [node for node in graph.artifacts if node.artifact.type == type_]
    return found


def test_a_dataset_with_another_manifest_is_flagged(walked: Walked) -> None:
    walked.write_manifest("sha256:" + "e" * 64)
    graph = lineage(walked.workspace, "digits/1")
    assert node(graph, "dataset").state == "changed"
    changed = [each for each in graph.artifacts if each.state == "changed"]
    assert changed == [node(graph, "dataset")]


def test_a_copy_elsewhere_keeps_a_dataset_unchanged(walked: Walked, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    write_document(copy / "manifest.json", "dataset", {"digest": DATASET})
    with start_run(walked.workspace, "train", run_id="train-2") as run:
        run.input(Artifact("dataset", copy, DATASET))
    walked.write_manifest("sha256:" + "e" * 64)
    graph = lineage(walked.workspace, "train-2")
    assert node(graph, "dataset").state == "present"
    assert node(graph, "dataset").uris == (str(copy), str(walked.dataset))
    assert "convert-1" in described(graph)


def test_the_dataset_that_is_there_now_is_meant(walked: Walked) -> None:
    walked.write_manifest("sha256:" + "e" * 64)
    graph = lineage(walked.workspace, walked.dataset)
    assert focus(graph).digest == "sha256:" + "e" * 64
    assert described(graph) == {"dataset"}


def test_a_dataset_of_another_workspace_stands_alone(walked: Walked, tmp_path: Path) -> None:
    write_document(tmp_path / "other" / "manifest.json", "dataset", {"digest": "sha256:ee"})
    assert described(lineage(walked.workspace, tmp_path / "other")) == {"dataset"}


def test_a_changed_script_and_missing_files_are_flagged(walked: Walked) -> None:
    walked.script.write_text("print(1)")
    walked.version.rmdir()
    graph = lineage(walked.workspace, "train-1")
    assert node(graph, "source").state == "changed"
    assert node(graph, "model").state == "missing"


def test_what_is_remote_has_no_state(workspace: Workspace) -> None:
    with start_run(workspace, "train") as run:
        run.input(Artifact("dataset", "s3://bucket/digits", DATASET))
    assert node(lineage(workspace, "last"), "dataset").state is None
    assert focus(lineage(workspace, "s3://bucket/digits/train-00000.tfrecord")).type == "dataset"


def test_a_version_without_a_record_is_known_from_its_folder(walked: Walked) -> None:
    (walked.workspace.models / "digits" / "2").mkdir()
    graph = lineage(walked.workspace, "digits")
    assert focus(graph).name == "digits/2"
    assert described(graph) == {"model"}


def test_a_models_name_means_the_newest_version_there_is(walked: Walked) -> None:
    second = walked.workspace.models / "digits" / "2"
    with start_run(walked.workspace, "export", run_id="export-2") as run:
        run.output(Artifact("model", second, "sha256:02", "digits"))
    assert focus(lineage(walked.workspace, "digits")).uri == str(walked.version)
    second.mkdir()
    assert focus(lineage(walked.workspace, "digits")).uri == str(second)
    second.rmdir()
    walked.version.rmdir()
    assert focus(lineage(walked.workspace, "digits")).uri == str(second)


def test_a_place_means_what_was_there_at_the_time(workspace: Workspace) -> None:
    for number in (1, 2):
        with start_run(workspace, "train", run_id=f"train-{number}") as run:
            run.output(Artifact("savedmodel", "/export", f"sha256:0{number}"))
        with start_run(workspace, "export", run_id=f"export-{number}") as run:
            run.input(Artifact("savedmodel", "/export"))
    first = lineage(workspace, "export-1", direction="upstream")
    assert described(first) == {"export-1", "savedmodel", "train-1"}


@pytest.mark.parametrize(
    ("kind", "files", "state"),
    [("convert", 3, "changed"), ("convert", 2, "present"), ("predict", 3, "present")],
)
def test_a_folder_has_changed_if_a_later_run_found_as_many_files_with_another_digest(
    workspace: Workspace, tmp_path: Path, kind: str, files: int, state: str
) -> None:
    for number, (each, count) in enumerate((("convert", 3), (kind, files)), start=1):
        with start_run(workspace, each, run_id=f"run-{number}") as run:
            run.input(Artifact("files", tmp_path, f"sha256:0{number}", None, {"files": count}))
    for number, expected in ((1, state), (2, "present")):
        (node,) = lineage(workspace, f"run-{number}").artifacts
        assert node.state == expected


def test_a_folder_around_the_workspace_is_not_that_of_a_file(workspace: Workspace) -> None:
    beside = workspace.root.parent / "other.png"
    beside.touch()
    with start_run(workspace, "convert", run_id="convert-1") as run:
        run.input(Artifact("files", workspace.root.parent))
    with pytest.raises(NotFoundError):
        lineage(workspace, beside)


def test_a_file_whose_digest_is_of_what_it_stands_for(tmp_path: Path) -> None:
    file = tmp_path / "train.ipynb"
    file.write_text("{}")
    metadata = {"file_digest": digest_file(file)}
    artifact = Artifact("source", file, "sha256:of-the-cells", None, metadata)
    found = ArtifactNode("a", (artifact,))
    assert observe(found) == "present"
    file.write_text("{ }")
    assert observe(found) == "changed"


def test_an_alias_names_the_version_that_has_it(walked: Walked) -> None:
    newer = walked.workspace.models / "digits" / "2"
    newer.mkdir()
    Aliases(walked.workspace.models / "digits").move("champion", 1)
    for ref, expected in (("digits@champion", walked.version), ("digits@latest", newer)):
        graph = lineage(walked.workspace, ref)
        focus = graph.nodes[str(graph.focus)]
        assert isinstance(focus, ArtifactNode)
        assert focus.artifact.uri == str(expected)
    with pytest.raises(NotFoundError, match="digits has no alias best"):
        lineage(walked.workspace, "digits@best")


def test_a_pattern_is_that_of_its_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("a.csv", "deep/b.csv", "c.txt"):
        (tmp_path / "in" / name).touch()
    for run_id, pattern in (("flat", "in/*.csv"), ("deep", "in/**/b.*"), ("gone", "in/*.gone")):
        with start_run(workspace, "predict", run_id=run_id) as run:
            run.input(Artifact("files", tmp_path / pattern))
    for name, pattern in (
        ("a.csv", "in/*.csv"),
        ("deep/b.csv", "in/**/b.*"),
        ("x.csv", "in/*.csv"),
    ):
        graph = lineage(workspace, tmp_path / "in" / name)
        assert graph.nodes[graph.focus].artifact.uri == str(tmp_path / pattern)
        assert observe(graph.nodes[graph.focus]) == "present"
    graph = lineage(workspace, tmp_path / "in" / "*.gone")
    assert observe(graph.nodes[graph.focus]) == "missing"
    with pytest.raises(NotFoundError):
        lineage(workspace, tmp_path / "in" / "c.txt")
