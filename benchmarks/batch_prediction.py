"""Batch prediction with MobileNetV2, against loops by hand and the bound of the model, in turn.

usage: batch_prediction.py [--images 4000] [--photographs FOLDER] [--rounds 3]
                           [--output benchmarks/results/batch_prediction.md]

Beam takes part after ``make test-beam``. Times are those of whole processes, with their start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import _measure
from conversion import BARE, BEAM, HERE, SIDE, Took, convert, make_photographs

OURS = "timonel predict --batch"
BOUND = "the same model in one process, files in memory"
LOOP = "model.predict over tf.data"
HAND_BEAM = "Beam RunInference by hand (Prism)"
OURS_BEAM = "timonel predict --batch --runner beam (Prism)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=4_000)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "batch_prediction.md")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name:
        folder = Path(name)
        source = folder / "photographs"
        make_photographs(source, options.images, options.photographs)
        make_model(folder, source)
        found = sides(source, folder)
        took: dict[str, list[Took]] = {side: [] for side in found}
        for _ in range(options.rounds):
            for side, command in found.items():
                took[side].append(convert(command, folder / "out.parquet", folder))
                (folder / "out.parquet").unlink()
                print(side, took[side][-1], flush=True)
    page = report(took, options.images)
    print(page)
    options.output.write_text(page)


def make_model(folder: Path, source: Path) -> None:
    """Save the model for each side; ours chooses its runtime, as an export does."""
    run([sys.executable, str(BARE / "predict_model.py"), str(source), str(folder)])
    timonel = [str(Path(sys.executable).parent / "timonel"), "-w", str(folder / "workspace")]
    run([*timonel, "models", "add", "photographs", str(folder / "saved_model")])
    run([*timonel, "models", "optimize", "photographs", "--samples", str(folder / "samples.npz")])


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def sides(source: Path, folder: Path) -> dict[str, list[str]]:
    """Return the command of each side; ``OUT`` stands for its destination."""
    ours = ["-w", str(folder / "workspace"), "predict", "photographs", "--batch", str(source)]
    # The model was added, not exported, so it has no evidence that its rows are independent.
    ours += ["--out", "OUT", "--batch-size", "32"]
    version = str(folder / "workspace" / "models" / "photographs" / "1")
    keras = str(folder / "model.keras")
    found = {
        OURS: [str(Path(sys.executable).parent / "timonel"), *ours],
        BOUND: [sys.executable, str(BARE / "predict_bound.py"), version, str(source), "OUT"],
        LOOP: [sys.executable, str(BARE / "predict_loop.py"), keras, str(source), "OUT"],
    }
    prism = shutil.which(os.environ.get("TIMONEL_PRISM") or BEAM / "prism")
    if prism is not None:
        flags = ["runner=PrismRunner", f"prism_location={prism}", "environment_type=LOOPBACK"]
        hand = [str(BEAM / "python"), str(BARE / "predict_beam.py"), keras, str(source), "OUT"]
        found[HAND_BEAM] = [*hand, *(f"--{flag}" for flag in flags)]
        beam = ["--runner", "beam", "--beam", ",".join(flags)]
        found[OURS_BEAM] = [str(BEAM / "timonel"), *ours, *beam]
    return found


def report(took: dict[str, list[Took]], images: int) -> str:
    """Return the page: each side's medians, and the ratios of rounds."""
    lines = [
        "# Batch prediction",
        "",
        (
            f"Commit {_measure.commit()}, {_measure.machine()}. MobileNetV2 at 160 pixels on "
            f"{images:,} photographs of {SIDE} pixels, JPEG; medians of {len(took[OURS])} rounds "
            "in which all sides take turns. Written by `benchmarks/batch_prediction.py`."
        ),
        "",
        "| side | wall s | CPU s | images per CPU second |",
        "|---|---|---|---|",
    ]
    for side, results in took.items():
        wall_s = statistics.median(each.wall_s for each in results)
        cpu_s = statistics.median(each.cpu_s for each in results)
        lines.append(f"| {side} | {wall_s:.1f} | {cpu_s:.1f} | {images / cpu_s:,.0f} |")
    lines += ["", "| ratio | CPU time | wall time | goal |", "|---|---|---|---|"]
    for what, above, below, goal in (
        ("the bound of the model to ours", BOUND, OURS, "0.95"),
        ("model.predict over tf.data to ours", LOOP, OURS, "1.5"),
        ("RunInference by hand to ours on Beam", HAND_BEAM, OURS_BEAM, "1.2"),
    ):
        if above in took:
            pairs = list(zip(took[above], took[below], strict=True))
            cpu = statistics.median(a.cpu_s / b.cpu_s for a, b in pairs)
            wall = statistics.median(a.wall_s / b.wall_s for a, b in pairs)
            lines.append(f"| {what} | {cpu:.2f} | {wall:.2f} | {goal} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
