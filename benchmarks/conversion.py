"""Conversion of photographs, against other tools and against its bounds, in turn.

usage: conversion.py [--images 20000] [--photographs FOLDER] [--rounds 3]
                     [--output benchmarks/results/conversion.md]

FOLDER has label folders of photographs; by default, crops of scikit-learn's two are used. Beam
takes part after ``make test-beam``; ``make bench-conversion`` installs the other tools.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _measure
from PIL import Image

HERE = Path(__file__).parent
BARE = HERE / "bare"
PEERS = HERE / "peers" / "datasets"
BEAM = Path(os.environ.get("BEAM_VENV", HERE.parent / ".venv-beam")) / "bin"
SIDE = 320
SHARDS = 20

OURS = "timonel convert"
OURS_DECODE = "timonel convert --check decode"
LOOP = "TFRecordWriter loop, decodes"
TFDS = "tensorflow-datasets, does not decode"
RAY = "Ray Data, does not decode"
DECODE = "decode at an eighth, all cores"
COPY = "copy and hash the files"
OURS_BEAM = "timonel convert --check decode --runner beam (Prism)"
HAND_BEAM = "Beam by hand (Prism), decodes"
HAND_DIRECT = "Beam by hand (Direct), decodes"
TFRECORDER = "TFRecorder's layout (once)"


@dataclass(frozen=True)
class Took:
    """Cost of one conversion."""

    wall_s: float
    cpu_s: float
    mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "conversion.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name:
        folder = Path(name)
        source = folder / "photographs"
        make_photographs(source, options.images, options.photographs)
        found = sides(source, folder)
        took: dict[str, list[Took]] = {side: [] for side in found}
        for number in range(options.rounds + 1):
            for side, command in found.items():
                # The first round reads the files into memory, and compiles modules.
                if number and side == TFRECORDER:  # only its size counts
                    continue
                result = convert(command, folder / "out", folder)
                if number or side == TFRECORDER:
                    took[side].append(result)
                    print(side, result, flush=True)
    page = report(took, options.images)
    print(page)
    options.output.write_text(page)


def make_photographs(folder: Path, count: int, given: Path | None) -> None:
    """Write JPEGs of ``SIDE`` pixels, cut out of photographs, into two label folders."""
    if given is None:
        from sklearn.datasets import load_sample_images

        originals = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    else:
        paths = sorted(path for path in given.rglob("*") if path.suffix.lower() == ".jpg")
        originals = [Image.open(path).convert("RGB") for path in paths]
    chance = random.Random(0)
    for number, image in zip(range(count), itertools.cycle(originals), strict=False):
        path = folder / ("left" if number % 2 else "right") / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        scale = chance.uniform(1, max(1, min(image.size) / SIDE))
        side = min(round(SIDE * scale), *image.size)
        left = chance.randint(0, image.width - side)
        top = chance.randint(0, image.height - side)
        cut = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
        cut.save(path, quality=90)


def sides(source: Path, folder: Path) -> dict[str, list[str]]:
    """Return the command of each side; ``OUT`` stands for its destination."""
    timonel = [str(Path(sys.executable).parent / "timonel"), "-w", str(folder / "workspace")]
    ours = [*timonel, "convert", str(source), "OUT", "--shards", str(SHARDS)]
    found = {
        OURS: ours,
        OURS_DECODE: [*ours, "--check", "decode"],
        LOOP: [sys.executable, str(BARE / "convert.py"), str(source), "OUT"],
        DECODE: [sys.executable, str(BARE / "decode.py"), str(source)],
        COPY: [sys.executable, str(BARE / "decode.py"), str(source), "OUT"],
        TFRECORDER: [sys.executable, str(BARE / "tfrecorder_layout.py"), str(source), "OUT"],
    }
    if (PEERS / ".venv" / ".ready").exists():
        python = str(PEERS / ".venv" / "bin" / "python")
        found[TFDS] = [python, str(PEERS / "convert_tfds.py"), str(source), "OUT"]
        found[RAY] = [python, str(PEERS / "convert_ray.py"), str(source), "OUT"]
    direct = [str(BEAM / "python"), str(BARE / "convert_beam.py"), str(source), "OUT", str(SHARDS)]
    if (BEAM / "python").exists():
        found[HAND_DIRECT] = direct
    prism = shutil.which(os.environ.get("TIMONEL_PRISM") or BEAM / "prism")
    if prism is not None:
        flags = ["runner=PrismRunner", f"prism_location={prism}", "environment_type=LOOPBACK"]
        words = ["--check", "decode", "--runner", "beam", "--beam", ",".join(flags)]
        found[OURS_BEAM] = [str(BEAM / "timonel"), *ours[1:], *words]
        found[HAND_BEAM] = [*direct, *(f"--{flag}" for flag in flags)]
    return found


def convert(command: Sequence[str], out: Path, folder: Path) -> Took:
    """Run a conversion to its end; count what all of its processes took."""
    shutil.rmtree(out, ignore_errors=True)
    words = [str(out) if word == "OUT" else word for word in command]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    wall_s = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return Took(wall_s, cpu_s, size / 2**20)


def report(took: dict[str, list[Took]], images: int) -> str:
    """Return the page: each side's medians, and the ratios of rounds."""
    about = (
        f"Commit {_measure.commit()}, {_measure.machine()}. {images:,} photographs of {SIDE} "
        f"pixels, JPEG; medians of {len(took[OURS])} rounds in which all sides take turns. "
        "Written by `benchmarks/conversion.py`."
    )
    lines = [
        "# Conversion",
        "",
        about,
        "",
        "| side | wall s | CPU s | images per CPU second | MiB written |",
        "|---|---|---|---|---|",
    ]
    for side, results in took.items():
        wall_s, cpu_s, mib = (
            statistics.median(getattr(each, name) for each in results)
            for name in ("wall_s", "cpu_s", "mib")
        )
        lines.append(
            f"| {side} | {wall_s:.1f} | {cpu_s:.1f} | {images / cpu_s:,.0f} | {mib:,.0f} |"
        )
    lines += ["", "| ratio | median | goal |", "|---|---|---|"]
    rows = [
        (
            "structure check: CPU time of the best other tool to ours",
            [LOOP, TFDS, RAY, HAND_DIRECT],
            OURS,
            "3",
            "cpu_s",
        ),
        ("decode check: CPU time of decoding alone to ours", [DECODE], OURS_DECODE, "0.9", "cpu_s"),
        ("decode check: wall time of decoding alone to ours", [DECODE], OURS_DECODE, "", "wall_s"),
        (
            "structure check: wall time of ours to copying and hashing",
            [OURS],
            COPY,
            "at most 1.5",
            "wall_s",
        ),
        (
            "decode check: CPU time of ours to Beam by hand, on Prism",
            [OURS_BEAM],
            HAND_BEAM,
            "at most 1.1",
            "cpu_s",
        ),
        ("size of TFRecorder's layout to ours", [TFRECORDER], OURS, "5", "mib"),
    ]
    for what, above, below, goal, name in rows:
        known = [side for side in above if side in took]
        if not known or below not in took:
            continue
        ratios = [
            min(getattr(took[side][min(number, len(took[side]) - 1)], name) for side in known)
            / getattr(each, name)
            for number, each in enumerate(took[below])
        ]
        lines.append(f"| {what} | {statistics.median(ratios):.2f} | {goal} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
