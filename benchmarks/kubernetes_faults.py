"""A worker of a job on Kubernetes is killed: the time to the next step, against a TFJob.

The TFJob restarts what fails and reads BackupAndRestore's checkpoints. Needs kubectl, a cluster in
KUBECONFIG with Kubeflow's training operator, a registry that this machine pushes to, the bucket's
credentials in the variables AWS_*, a folder of this machine that all nodes have, and nodes whose
clocks agree with this machine's.

usage: kubernetes_faults.py --image HOST/REPOSITORY:TAG --workspace s3://BUCKET/PATH [--plain-http]
                            [--shared /var/tmp/timonel-bench] [--rounds 3] [--note SENTENCE]
                            [--output benchmarks/results/kubernetes_faults.md]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Template

import _measure
from _main_job import HERE, TIMONEL
from kubernetes_jobs import Cluster, Image, namespace, requirements, run

GOAL = 1 / 3
EPOCHS, STEPS, SAVE_STEPS, KILL_AFTER = 4, 100, 10, 133
TFJOB = HERE / "bare/tfjob_faults.yaml"
_KILL = """
import os, pathlib, sys
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if sys.argv[1] in (process / "cmdline").read_text() and process.name != "1":
        if int(process.name) != os.getpid():
            os.kill(int(process.name), 9)
"""


@dataclass(frozen=True)
class Recovery:
    """What the steps of a disturbed run show.

    Attributes:
        pause_s: Seconds from the kill to the end of the next step.
        repeated: Steps done again.
        last: Number of the last step.
    """

    pause_s: float
    repeated: int
    last: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--plain-http", action="store_true", help="push without TLS")
    parser.add_argument("--shared", type=Path, default=Path("/var/tmp/timonel-bench"))
    parser.add_argument("--note", default="", help="sentence about the cluster, for the page")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results/kubernetes_faults.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name:
        folder = Path(name)
        (folder / "by-hand").mkdir()
        shutil.copy(HERE / "bare/kubernetes_faults_job.py", folder / "by-hand")
        shutil.copy(HERE / "_kubernetes_faults_train.py", folder / "train.py")
        needed = [*requirements(), "tf-keras", ""]
        (folder / "requirements.txt").write_text("\n".join(needed))
        built = Image(options.image, folder, options.plain_http).build()["image"]
        with namespace("timonel-bench-faults") as cluster:
            os.environ["TIMONEL_KUBERNETES_IMAGE"] = built
            cluster.pull(built)
            ours, theirs = [], []
            for number in range(options.rounds):
                theirs.append(kill_theirs(cluster, built, options.shared, number))
                ours.append(kill_ours(cluster, folder, options.workspace))
                print(ours[-1], theirs[-1], flush=True)
    page = report(ours, theirs, options.note)
    print(page)
    options.output.write_text(page)


def kill_theirs(cluster: Cluster, image: str, shared: Path, number: int) -> Recovery:
    """Run the TFJob and kill a worker's process."""
    name = f"faults-{number}"
    shutil.rmtree(shared, ignore_errors=True)
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    arguments = ", ".join(f'"{each}"' for each in (EPOCHS, STEPS, SAVE_STEPS))
    values = {"NAME": name, "IMAGE": image, "FOLDER": str(shared), "ARGUMENTS": arguments}
    text = Template(TFJOB.read_text()).substitute(values)
    cluster.kubectl("apply", "-f", "-", input=text)
    file = shared / "steps.txt"

    def steps() -> list[tuple[int, float]]:
        return read_steps(file.read_text().splitlines() if file.exists() else ())

    def kill() -> None:
        words = ["python3", "-c", _KILL, "kubernetes_faults_job.py"]
        cluster.kubectl("exec", f"{name}-worker-2", "--", *words)

    found = disturbed(steps, kill)
    cluster.kubectl("delete", "tfjob", name)
    return found


def kill_ours(cluster: Cluster, folder: Path, workspace: str) -> Recovery:
    """Run the job and kill a worker's process."""
    from timonel.engines.kubernetes import KubernetesEngine
    from timonel.storage import find_workspace

    words = ["train", "train.py", "--workers", "3", "--on", "kubernetes", "--detach"]
    words += ["--checkpoint-steps", str(SAVE_STEPS), "--", str(EPOCHS), str(STEPS)]
    run([TIMONEL, "-w", workspace, *words], cwd=folder)
    engine = KubernetesEngine.of(find_workspace(workspace))
    job = max(engine.jobs(), key=lambda status: status.created_at).job_id

    def steps() -> list[tuple[int, float]]:
        return read_steps(line.text for line in engine.logs(job, task_id="chief-0"))

    def kill() -> None:
        pid = next(task.pid for task in engine.status(job).tasks if task.task_id == "worker-1")
        labels = f"timonel.dev/job={job},timonel.dev/role=worker"
        pods = cluster.kubectl("get", "pods", "-l", labels, "-o", "name").split()
        (pod,) = (each for each in pods if f"{job}-worker-1-" in each)
        program = f"import os; os.kill({pid}, 9)"
        cluster.kubectl("exec", pod, "--", "python3", "-c", program)

    return disturbed(steps, kill)


def disturbed(steps: Callable[[], list[tuple[int, float]]], kill: Callable[[], None]) -> Recovery:
    """Kill after some steps, and wait for the last step."""
    deadline = time.monotonic() + 600
    while not any(number >= KILL_AFTER for number, _ in steps()):
        time.sleep(0.1)
        if time.monotonic() > deadline:
            sys.exit("no steps in ten minutes")
    killed_at = time.time()
    kill()
    while not any(number == EPOCHS * STEPS for number, _ in steps()):
        time.sleep(1)
        if time.monotonic() > deadline:
            sys.exit("no last step in ten minutes")
    found = steps()
    # The others end the step during which the worker was killed, and later go back to a checkpoint.
    resumed_at = next(
        later
        for (before, _), (number, later) in pairwise(found)
        if later > killed_at and number <= before
    )
    numbers = [number for number, _ in found]
    return Recovery(resumed_at - killed_at, len(numbers) - len(set(numbers)), max(numbers))


def read_steps(lines: Iterable[str]) -> list[tuple[int, float]]:
    matches = (re.fullmatch(r"STEP (\d+) ([\d.]+)", line.strip()) for line in lines)
    return [(int(match[1]), float(match[2])) for match in matches if match]


def report(ours: list[Recovery], theirs: list[Recovery], note: str) -> str:
    """Return the result as a Markdown page."""
    pauses = [statistics.median(each.pause_s for each in side) for side in (ours, theirs)]
    again = ["; ".join(str(each.repeated) for each in side) for side in (ours, theirs)]
    intro = (
        f"Measured {time.strftime('%Y-%m-%d')} at commit {_measure.commit()}, submitted from "
        f"{_measure.machine()}. Three workers train with MultiWorkerMirroredStrategy, {STEPS} "
        f"steps an epoch, a checkpoint every {SAVE_STEPS} steps. After step {KILL_AFTER}, the "
        "process of the last worker gets SIGKILL. The TFJob (Kubeflow's training operator 1.8.1, "
        "restartPolicy OnFailure) runs model.fit of tf-keras with BackupAndRestore in a folder "
        "that all pods share; ours is `timonel train --on kubernetes` with a script of plain "
        f"Keras 3. Medians of {len(ours)} rounds in which the sides take turns."
    )
    ratio = f"{pauses[0]:.1f} s | {pauses[1]:.1f} s | {pauses[0] / pauses[1]:.2f}"
    rows = [
        "| | ours | TFJob | ratio | goal |",
        "|---|---|---|---|---|",
        f"| kill to the end of the next step | {ratio} | {GOAL:.2f} or less |",
        f"| steps done again, by round | {again[0]} | {again[1]} | | 0 |",
    ]
    return "\n".join(["# Jobs on Kubernetes: a killed worker", "", intro, "", note, "", *rows, ""])


if __name__ == "__main__":
    main()
