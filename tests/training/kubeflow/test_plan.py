"""Plans of manifests: engine specifications compared with files, and where programs are found.

After an intended change, write the files again with ``UPDATE_GOLDEN=1 pytest <this file>``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from timonel.engines import JobSpec
from timonel.errors import NotFoundError, SpecError
from timonel.options import with_defaults
from timonel.storage import Workspace, find_workspace
from timonel.training.job import job_spec
from timonel.training.kubeflow.plan import ManifestPlan, plan_manifest
from timonel.training.request import JobOptions, check_request
from timonel.training.settings import settings_of
from timonel.training.train_options import TrainOptions

_HERE = Path(__file__).parent
MANIFESTS = _HERE / "manifests"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return find_workspace(tmp_path / "workspace")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return tmp_path


def planned(path: Path, *args: str, entry: Any = None, local: bool = True) -> ManifestPlan:
    return plan_manifest(path, entry, args, {}, shares_machine=local)


def spec_of(plan: ManifestPlan, workspace: Workspace) -> JobSpec:
    given = {**with_defaults(TrainOptions, {"seed": 1}), **plan.options(())}
    options = JobOptions.of(given)
    request = check_request(
        plan, data=None, settings=settings_of(given), params=None, args=plan.args
    )
    return job_spec(request, workspace, "train-1", options)


@pytest.mark.parametrize(
    "name", ["mnist-ps", "multi-worker-gpu", "evaluator", "mpi-mnist", "mpi-slots"]
)
def test_specifications_for_clusters(name: str, workspace: Workspace) -> None:
    plan = planned(MANIFESTS / f"{name}.yaml", local=False)
    spec = spec_of(plan, workspace).model_dump(mode="json", exclude_defaults=True)
    for left_out in ("args", "preload", "sidecars", "epilogue", "folders"):
        spec.pop(left_out)
    found = {
        "program": [plan.program.kind, plan.program.file],
        "args": list(plan.args),
        "role_args": {role: list(args) for role, args in plan.role_args.items()},
        "name": plan.options(())["name"],
        "notes": list(plan.notes()),
        "spec": spec,
    }
    text = yaml.safe_dump(found, sort_keys=False)
    golden = _HERE / "golden" / f"{name}.yaml"
    before = golden.read_text() if golden.is_file() else None
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == before


def test_this_machine_gets_the_tasks_and_their_environment_only(
    folder: Path, workspace: Workspace
) -> None:
    (folder / "trainer").mkdir()
    (folder / "trainer" / "task.py").touch()
    plan = planned(MANIFESTS / "multi-worker-gpu.yaml")
    spec = spec_of(plan, workspace)
    (worker,) = spec.roles
    assert (worker.replicas, worker.env["DATA"]) == (3, "/data/train")
    assert spec.image is None
    assert not spec.volumes
    assert not worker.resources.accelerators
    assert spec.source == str(folder)
    assert list(plan.notes())[-1] == (
        "fields without effect on this machine: image, resources, nodeSelector, tolerations and "
        "priorityClassName, volumes"
    )


def test_a_script_is_found_by_the_end_of_its_path(folder: Path) -> None:
    manifest = folder / "jobs" / "tfjob.yaml"
    manifest.parent.mkdir()
    manifest.write_text((MANIFESTS / "mnist-ps.yaml").read_text())
    assert planned(manifest).program.file == str(folder / "train.py")
    beside = manifest.parent / "train.py"
    beside.touch()
    assert planned(manifest).program.file == str(beside)
    longer = folder / "mnist" / "train.py"
    longer.parent.mkdir()
    longer.touch()
    assert planned(manifest).program.file == str(longer)
    for path in (folder / "train.py", beside, longer):
        path.unlink()
    with pytest.raises(NotFoundError, match=r"no script train\.py beside"):
        planned(manifest)


def test_an_entry_replaces_the_program(folder: Path) -> None:
    (folder / "other.py").touch()
    plan = planned(MANIFESTS / "mnist-ps.yaml", entry="other.py", local=False)
    assert plan.program.name == "other.py"
    assert not plan.is_in_image
    assert plan.args == ("--batch-size=64", "--role=chief")
    assert plan.role_args["ps"] == ("--batch-size=64", "--role=ps")
    plan = planned(MANIFESTS / "mnist-ps.yaml", "--fast", entry="other.py")
    assert (plan.args, plan.role_args) == (("--fast",), {})


def test_arguments_replace_those_of_the_manifest(folder: Path) -> None:
    plan = planned(MANIFESTS / "mnist-ps.yaml", "--fast")
    assert (plan.program.name, plan.args, plan.role_args) == ("train.py", ("--fast",), {})


def edited(folder: Path, *, of: str = "mnist-ps", **replaced: str) -> Path:
    """Write a manifest with pieces of its text replaced."""
    text = (MANIFESTS / f"{of}.yaml").read_text()
    for old, new in replaced.items():
        text = text.replace(old, new)
    path = folder / "edited.yaml"
    path.write_text(text)
    return path


def test_an_entry_gets_the_arguments_of_an_image_without_command(folder: Path) -> None:
    path = edited(folder, **{"command: [python, /opt/mnist/train.py]": ""})
    assert planned(path, entry="train.py").args == ("--batch-size=64", "--role=chief")
    with pytest.raises(SpecError, match="the container of Chief has no command"):
        planned(path)


def test_an_entry_replaces_any_command(folder: Path) -> None:
    path = edited(folder, python="./run.sh")
    assert planned(path, entry="train.py").args == ()


def test_restart_policies(folder: Path) -> None:
    for policy, expected in (("Never", 0), ("OnFailure", 6), ("Always", 6)):
        plan = planned(edited(folder, ExitCode=policy))
        assert plan.options(())["max_restarts"] == expected
        assert "max_restarts" not in plan.options({"max_restarts"})
    plan = planned(edited(folder, ExitCode="OnFailure", backoffLimit="#"))
    assert "max_restarts" not in plan.options(())
    assert "errors of the program fail the job at once" in " ".join(plan.notes())


@pytest.mark.parametrize("option", ["workers", "strategy", "task_type"])
def test_options_that_the_manifest_sets_are_refused(option: str, folder: Path) -> None:
    plan = planned(MANIFESTS / "mnist-ps.yaml")
    with pytest.raises(SpecError, match=f"--{option.replace('_', '-')} cannot be used with --file"):
        plan.options({option})


def test_a_job_has_one_program_and_one_image(folder: Path, workspace: Workspace) -> None:
    ps = "{}]\n              args: [--batch-size=64, --role=ps]"
    path = edited(folder, **{ps.format("train.py"): ps.format("ps.py")})
    with pytest.raises(SpecError, match=r"one program, got /opt/mnist/train\.py and /opt/mnist/ps"):
        planned(path)
    image = "mnist:{}\n              command: [python, /opt/mnist/train.py]\n" + " " * 14
    other = {image.format(1) + "args: [--batch-size=64, --role=ps]": image.format(2)}
    with pytest.raises(SpecError, match=r"need one image, got registry\.example/mnist:1, "):
        spec_of(planned(edited(folder, **other), local=False), workspace)
    path = edited(folder, of="evaluator", **{"workingDir: /app": ""})
    with pytest.raises(SpecError, match=r"the path of train\.py in the image is not known"):
        planned(path, local=False)


def test_one_volume_at_a_path(folder: Path, workspace: Workspace) -> None:
    text = (MANIFESTS / "multi-worker-gpu.yaml").read_text()
    worker = text[text.index("    Worker:") :]
    chief = worker.replace("Worker:", "Chief:").replace("replicas: 3", "replicas: 1")
    path = folder / "edited.yaml"
    path.write_text(text + chief)
    assert len(spec_of(planned(path, local=False), workspace).volumes) == 2
    path.write_text(text + chief.replace("claimName: images", "claimName: others"))
    with pytest.raises(SpecError, match="mount different volumes at /data"):
        spec_of(planned(path, local=False), workspace)


@pytest.mark.parametrize(
    ("volume", "source"),
    [
        ("configMap: {name: settings}", "configmap://settings"),
        ("secret: {secretName: keys}", "secret://keys"),
        ("persistentVolumeClaim: {claimName: images}", "pvc://images"),
    ],
)
def test_sources_of_volumes(folder: Path, workspace: Workspace, volume: str, source: str) -> None:
    text = (MANIFESTS / "multi-worker-gpu.yaml").read_text()
    path = folder / "edited.yaml"
    path.write_text(text.replace("persistentVolumeClaim: {claimName: images}", volume))
    volumes = spec_of(planned(path, local=False), workspace).volumes
    assert source in {each.source for each in volumes}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no manifest at"):
        planned(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="cannot read the manifest"):
        planned(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is no text"):
        planned(tmp_path / "binary")


def test_the_program_of_an_mpi_job_uses_no_mpi(folder: Path) -> None:
    script = folder / "tensorflow2_mnist.py"
    script.write_text("import horovod.tensorflow.keras as hvd\n")
    with pytest.raises(SpecError, match=r"tensorflow2_mnist\.py uses horovod \(line 1\)"):
        planned(MANIFESTS / "mpi-mnist.yaml")
    script.write_text("import keras\n")
    plan = planned(MANIFESTS / "mpi-mnist.yaml")
    options = plan.options(())
    assert (options["strategy"], options["batch_size_is"]) == ("auto", "per-replica")
    assert "batch_size_is" not in plan.options({"batch_size_is"})
    assert not any("is not checked" in note for note in plan.notes())
    in_image = planned(MANIFESTS / "mpi-mnist.yaml", local=False)
    assert any("is not checked for Horovod" in note for note in in_image.notes())


@pytest.mark.parametrize(
    ("manifest", "name", "strategy"),
    [
        ("multi-worker-gpu", "MultiWorkerMirroredStrategy", "auto"),
        ("multi-worker-gpu", "ParameterServerStrategy", "none"),
        ("mnist-ps", "ParameterServerStrategy", "auto"),
        ("mnist-ps", "MultiWorkerMirroredStrategy", "none"),
    ],
)
def test_a_program_gets_the_strategy_that_it_creates(
    manifest: str, name: str, strategy: str, folder: Path
) -> None:
    (folder / "train.py").write_text(f"strategy = tf.distribute.{name}()\n")
    plan = planned(MANIFESTS / f"{manifest}.yaml", entry="train.py")
    assert plan.options(())["strategy"] == strategy
    note = "the program gets the job's strategy, as with --workers, instead of its own"
    assert (note in plan.notes()) is (strategy == "auto")
