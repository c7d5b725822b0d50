"""Jobs on a Kubernetes cluster, against YAML and a script written by hand, and against a TFJob.

Measures the time to the first step with images on the nodes, the time until pods run a changed
line, and the time to make the manifests of 1,000 workers. Needs kubectl, a cluster in KUBECONFIG, a
registry that this machine pushes to, the bucket's credentials in the variables AWS_*, and nodes
whose clocks agree with this machine's. The TFJob is left out where the cluster has no training
operator of Kubeflow.

usage: kubernetes_jobs.py --image HOST/REPOSITORY:TAG --workspace s3://BUCKET/PATH [--plain-http]
                     [--namespace timonel-bench] [--rounds 3]
                     [--note SENTENCE] [--output benchmarks/results/kubernetes_jobs.md]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import requires, version
from pathlib import Path
from string import Template
from typing import Any

import _measure
from _main_job import HERE, TIMONEL
from packaging.requirements import Requirement

FIRST_STEP_GOAL, CHANGE_GOAL, MANIFESTS_GOAL_S = 1.3, 0.1, 1.0
WORKERS = 2
YAML, TFJOB = HERE / "bare/kubernetes_job.yaml", HERE / "bare/tfjob.yaml"


@dataclass(frozen=True)
class Took:
    """Seconds from a command's start."""

    line_s: float
    first_step_s: float


@dataclass(frozen=True)
class Changed:
    """A job by hand after a change of its code, with the build of its image."""

    build_s: float
    line_s: float
    uploaded_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image")
    parser.add_argument("--workspace")
    parser.add_argument("--plain-http", action="store_true", help="push without TLS")
    parser.add_argument("--namespace", default="timonel-bench")
    parser.add_argument("--note", default="", help="sentence about the cluster, for the page")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "kubernetes_jobs.md")
    options = parser.parse_args()
    if not (os.environ.get("KUBECONFIG") and options.image and options.workspace):
        sys.exit("this needs KUBECONFIG, --image HOST/REPOSITORY:TAG and --workspace s3://BUCKET")
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name:
        folder = Path(name)
        (folder / "ours").mkdir()
        (folder / "by-hand").mkdir()
        (folder / "requirements.txt").write_text("\n".join(requirements()))
        # No registry or bucket has these lines from an earlier run.
        first = int(time.time())
        write_line(folder, first)
        image = Image(options.image, folder, options.plain_http)
        built = image.build()["image"]
        with namespace(options.namespace) as cluster:
            os.environ["TIMONEL_KUBERNETES_IMAGE"] = built
            cluster.pull(built)
            ours, by_hand, by_operator = [], [], []
            # The first round warms what both sides read, and does not count.
            for number in range(first, first + options.rounds + 1):
                write_line(folder, number)
                by_hand.append(cluster.run_by_hand(f"by-hand-{number}", built, first))
                if has_operator():
                    by_operator.append(cluster.run_tfjob(f"tfjob-{number}", built, first))
                ours.append(run_ours(folder / "ours", options.workspace, number))
                print(ours[-1], by_hand[-1], by_operator[-1:], flush=True)
            changes = []
            for number, is_cached in ((first - 1, True), (first - 2, False)):
                write_line(folder, number)
                changes.append(change_by_hand(image, cluster, number, is_cached))
                print(changes[-1], flush=True)
    sides = (ours[1:], by_hand[1:], by_operator[1:])
    page = report(sides, changes, manifests(), options.note)
    print(page)
    options.output.write_text(page)


def write_line(folder: Path, number: int) -> None:
    """Write both scripts with another number in their first line."""
    line = f"line-{number}"
    script = (HERE / "_kubernetes_train.py").read_text()
    (folder / "ours/train.py").write_text(script.replace("line-0", line))
    bare = (HERE / "bare/kubernetes_job.py").read_text()
    (folder / "by-hand/kubernetes_job.py").write_text(bare.replace("line-0", line))


def requirements() -> Iterator[str]:
    """Yield what jobs need, in the versions of this environment, without GPU packages."""
    left_out = {"ai-edge-litert", "tensorflow", "tensorflow-serving-api", "uv"}
    for each in map(Requirement, requires("timonel") or ()):
        extras = ("", "kubernetes", "s3")
        if each.name not in left_out and (
            each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ):
            yield f"{each.name}=={version(each.name)}"
    yield f"tensorflow-cpu=={version('tensorflow')}"


@dataclass(frozen=True)
class Image:
    """An image of the script by hand and its packages."""

    target: str
    folder: Path
    plain_http: bool

    def build(self, cache: Path | None = None) -> dict[str, str]:
        """Build and push; ``cache`` replaces the caches of layers and of downloaded packages."""
        words = ["--folder", str(self.folder / "by-hand"), "--base", "self", "--json"]
        words += ["--requirements", str(self.folder / "requirements.txt")]
        words += ["--plain-http"] if self.plain_http else []
        env = {**os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {})}
        done = run([TIMONEL, "image", "build", self.target, *words], env=env)
        built: dict[str, str] = json.loads(done)
        return built


@dataclass(frozen=True)
class Cluster:
    """A namespace of the cluster."""

    namespace: str

    def kubectl(self, *words: str, **options: Any) -> str:
        return run(["kubectl", "-n", self.namespace, *words], **options)

    def apply(self, kind: str, name: str, **body: object) -> None:
        manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **body}
        self.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def pull(self, image: str) -> None:
        """Run an empty program with the image on each node."""
        for node in self.kubectl("get", "nodes", "-o", "name").split():
            name = node.removeprefix("node/")
            container = {"name": "pull", "image": image, "command": ["python3", "-c", ""]}
            spec = {"nodeName": name, "restartPolicy": "Never", "containers": [container]}
            self.apply("Pod", f"pull-{name}", spec=spec)
        done = "--for=jsonpath={.status.phase}=Succeeded"
        self.kubectl("wait", "pod", "--all", done, "--timeout=300s")

    def run_by_hand(self, name: str, image: str, number: int) -> Took:
        begin = self._create(YAML, name, image)
        self.kubectl("wait", f"job/{name}", "--for=condition=complete", "--timeout=300s")
        output = self.kubectl("logs", "-l", f"job-name={name}", "--tail=-1")
        self.kubectl("delete", "job,service", name)
        return took(output, begin, number)

    def run_tfjob(self, name: str, image: str, number: int) -> Took:
        begin = self._create(TFJOB, name, image)
        self.kubectl("wait", f"tfjob/{name}", "--for=condition=Succeeded", "--timeout=300s")
        labels = f"training.kubeflow.org/job-name={name}"
        output = self.kubectl("logs", "-l", labels, "--tail=-1")
        self.kubectl("delete", "tfjob", name)
        return took(output, begin, number)

    def _create(self, template: Path, name: str, image: str) -> float:
        """Create objects, and return the time before."""
        values = {"NAME": name, "IMAGE": image, "WORKERS": str(WORKERS)}
        begin = time.time()
        self.kubectl("apply", "-f", "-", input=Template(template.read_text()).substitute(values))
        return begin


@contextmanager
def namespace(name: str) -> Iterator[Cluster]:
    """Create a namespace with the credentials of the bucket; delete it at the end."""
    cluster = Cluster(name)
    cluster.kubectl("create", "namespace", name)
    try:
        variables = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        cluster.apply("Secret", "bucket", stringData=variables)
        os.environ |= {"TIMONEL_KUBERNETES_NAMESPACE": name, "TIMONEL_KUBERNETES_SECRET": "bucket"}
        yield cluster
    finally:
        cluster.kubectl("delete", "namespace", name)


def has_operator() -> bool:
    """Return whether the cluster runs TFJobs."""
    return "tfjobs.kubeflow.org" in run(["kubectl", "get", "crd", "-o", "name"])


def run_ours(folder: Path, workspace: str, number: int) -> Took:
    words = ["train", "train.py", "--workers", str(WORKERS), "--on", "kubernetes"]
    begin = time.time()
    run([TIMONEL, "-w", workspace, *words], cwd=folder)
    return took(run([TIMONEL, "-w", workspace, "logs", "last"]), begin, number)


def change_by_hand(image: Image, cluster: Cluster, number: int, is_cached: bool) -> Changed:
    """Build and push the image after a change, and run it by hand.

    Without caches, it goes to a repository that has no layers. Nodes still have those with the same
    digest, which favours the side by hand.
    """
    begin = time.time()
    with tempfile.TemporaryDirectory(prefix="timonel-bench-cache-") as cache:
        if not is_cached:
            repository, tag = image.target.rsplit(":", 1)
            image = replace(image, target=f"{repository}-{int(begin)}:{tag}")
        built = image.build(None if is_cached else Path(cache))
        build_s = time.time() - begin
    done = cluster.run_by_hand(f"changed-{number}", built["image"], number)
    return Changed(build_s, build_s + done.line_s, int(built["uploaded_bytes"]))


def took(output: str, begin: float, number: int) -> Took:
    """Return when the last task printed its first line, and the first one its first step."""
    marks: dict[str, list[float]] = {}
    for name, stamp in re.findall(r"MARK (\S+) ([\d.]+)", output):
        marks.setdefault(name, []).append(float(stamp))
    lines = marks.get(f"line-{number}", [])
    if len(lines) < WORKERS or "first-step" not in marks:
        sys.exit(f"no first step of {WORKERS} tasks with line {number}:\n{output[-3000:]}")
    return Took(max(lines) - begin, min(marks["first-step"]) - begin)


def run(command: list[str], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def manifests() -> tuple[float, int]:
    """Return the median seconds to make the manifests of 1,000 workers, and their number."""
    from timonel.engines import JobSpec, JobStatus, RoleSpec
    from timonel.engines.kubernetes.manifests import job_manifests
    from timonel.engines.kubernetes.settings import ClusterSettings

    settings = ClusterSettings(namespace="team", image="registry.example/team/train:v1")
    durations = []
    for _ in range(5):
        begin = time.perf_counter()
        roles = (RoleSpec(name="chief"), RoleSpec(name="worker", replicas=999))
        spec = JobSpec(job_id="train", module="timonel.training.worker", roles=roles)
        status = JobStatus.of(spec, 0.0)
        made = job_manifests(spec, settings, "s3://team", "token", status)
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations), len(made)


def report(
    sides: tuple[list[Took], list[Took], list[Took]],
    changes: list[Changed],
    made: tuple[float, int],
    note: str,
) -> str:
    """Return the result as a Markdown page."""
    cached, full = changes
    ours, by_hand, by_operator = sides
    first = [statistics.median(each.first_step_s for each in side) for side in sides if side]
    line = [statistics.median(each.line_s for each in side) for side in sides if side]
    rows = (
        ("submit to first step", first[0], first[1], FIRST_STEP_GOAL),
        *([("submit to first step; a TFJob", first[0], first[2], 1.0)] if by_operator else []),
        ("submit to first line in both pods", line[0], line[1], None),
        ("changed line in both pods; by hand: no caches", line[0], full.line_s, CHANGE_GOAL),
        ("changed line in both pods; by hand: layers cached", line[0], cached.line_s, None),
    )
    ratios = (a.first_step_s / b.first_step_s for a, b in zip(ours, by_hand, strict=True))
    intro = (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {_measure.commit()}, submitted from "
        f"{_measure.machine()}. {WORKERS} workers train a model of one layer with "
        "MultiWorkerMirroredStrategy; nodes have the image. Ours is `timonel train --on "
        "kubernetes`, with the start of the command and the upload of the changed script. It "
        "imports TensorFlow and makes the strategy before the script's first line. By hand is "
        "`kubectl apply` of an Indexed Job and a Service, with the custom loop of TensorFlow's "
        "tutorial, as `model.fit` of Keras 3 fails under that strategy; a TFJob of Kubeflow's "
        "training operator 1.8.1 runs the same script. The scripts print the "
        f"times. Medians of {len(ours)} rounds in which the sides take turns, but one round for "
        "each build by hand. Ratios of the first step, round by round: "
        f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}."
    )
    builds = (
        f"By hand, a change needs another image. Without caches, its build took {full.build_s:.0f} "
        f"s (packages downloaded, installed, compressed, {full.uploaded_bytes / 2**20:.0f} MiB "
        f"pushed); with cached layers, {cached.build_s:.1f} s. Builds are reproducible, so nodes "
        "pulled only the layer of the code in both cases."
    )
    head = ["# Jobs on Kubernetes", "", intro, "", *([note, ""] if note else [])]
    head += ["| | ours | peer | ratio | goal |", "|---|---|---|---|---|"]
    body = [
        f"| {what} | {a:.3g} s | {b:.3g} s | {a / b:.2f} | {f'{goal} or less' if goal else ''} |"
        for what, a, b, goal in rows
    ]
    tail = (
        f"The {made[1]} manifests of a job with 1,000 workers are made in {1000 * made[0]:.1f} ms "
        f"(goal: {MANIFESTS_GOAL_S:.0f} s or less); each role is one Indexed Job."
    )
    return "\n".join([*head, *body, "", builds, "", tail, ""])


if __name__ == "__main__":
    main()
