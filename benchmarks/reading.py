"""Reading photographs and rows for training, against other readers and against decoding alone.

usage: reading.py [--images 600] [--records 1000000] [--photographs FOLDER] [--rounds 3]
                  [--grain PYTHON] [--output benchmarks/results/reading.md]

FOLDER has photographs; by default, crops of scikit-learn's two are used. Grain takes part with
``--grain``, a Python that has it and timonel: ``uv venv grain && uv pip install --python
grain/bin/python -e . grain``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import _measure
from _rows import Row
from PIL import Image

from timonel.data import convert

HERE = Path(__file__).parent
READ = str(HERE / "bare" / "read.py")
EPOCHS = 3
MOST_S = 2.0
NAMES = {
    "keras": "keras.utils.image_dataset_from_directory",
    "loop": "TFRecordDataset loop",
    "loop-rows": "TFRecordDataset loop",
    "grain": "Grain and Pillow, threads",
    "bound": "decode and resize alone",
    "timonel": "timonel, no cache",
}
HEAD = """| what | timonel | against | ratio | goal | met |
|---|---|---|---|---|---|"""

Result = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--grain")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "reading.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timonel-bench-") as name:
        rows = measure(Path(name), options)
    about = (
        f"Commit {_measure.commit()}, {_measure.machine()}. {options.images:,} JPEGs of each size, "
        f"{options.records:,} rows. Each side is a process that reads {EPOCHS} epochs, in "
        f"{options.rounds} rounds in which all sides take turns. CPU time is that of epochs after "
        "the first. The time to the first batch starts after imports. Written by "
        "`benchmarks/reading.py`."
    )
    page = "\n".join(["# Reading", "", about, "", HEAD, *(row.markdown() for row in rows), ""])
    print(page)
    options.output.write_text(page)


def measure(folder: Path, options: argparse.Namespace) -> list[Row]:
    """Return the rows of all contests."""
    others = ["keras", "loop", *(["grain"] if options.grain else [])]
    rows = []
    for side, most in ((500, 1 / 1.2), (2000, 1 / 2)):
        data = photographs(folder / str(side), side, options.images, options.photographs)
        sides = ["timonel", "timonel-full", "timonel-memory", "timonel-cache", *others, "bound"]
        found = contest(sides, data, EPOCHS, options)
        what = f"CPU time per image, {side} pixels"
        best = min(others, key=lambda other: statistics.median(map(cpu_ms, found[other])))
        for other in others:
            goal = round(most, 2) if other == best else None
            rows.append(row(found, what, "timonel", other, cpu_ms, "ms", goal))
        rows += [
            row(found, f"{what}, shrink_on_load=False", "timonel-full", "loop", cpu_ms, "ms"),
            row(found, f"{what}, cache", "timonel-cache", "timonel", cpu_ms, "ms"),
            row(found, f"{what}, bytes in memory", "timonel-memory", "bound", cpu_ms, "ms", 1.05),
        ]
        for other in others:
            what = f"first batch, {side} pixels"
            rows.append(row(found, what, "timonel", other, first_s, "s", 1.0))
    data = numbers(folder / "rows", options.records)
    found = contest(["timonel-rows", "loop-rows"], data, 0, options)
    what = f"first batch of {options.records:,} rows"
    rows.append(row(found, what, "timonel-rows", "loop-rows", first_s, "s"))
    seconds = [first_s(result) for result in found["timonel-rows"]]
    rows.append(Row(what, "s", seconds, [MOST_S] * len(seconds), "the goal", 1.0))
    return rows


def contest(
    sides: Sequence[str], data: Path, epochs: int, options: argparse.Namespace
) -> dict[str, list[Result]]:
    """Run all sides in turn; the first round reads the files into memory and does not count."""
    found: dict[str, list[Result]] = {side: [] for side in sides}
    for number, side in itertools.product(range(options.rounds + 1), sides):
        python = options.grain if side == "grain" else sys.executable
        command = [python, READ, side, str(data), str(epochs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{side} failed:\n{done.stderr[-2000:]}")
        if number:
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
            print(data.name, side, found[side][-1], file=sys.stderr, flush=True)
    return found


def row(
    found: Mapping[str, Sequence[Result]],
    what: str,
    ours: str,
    other: str,
    figure: Any,
    unit: str,
    most: float | None = None,
) -> Row:
    pair = ([figure(result) for result in found[side]] for side in (ours, other))
    return Row(what, unit, *pair, NAMES[other], most)


def cpu_ms(result: Result) -> float:
    """Return the CPU time per image of epochs after the first."""
    later = result["epochs"][1:]
    return 1000 * sum(e["cpu_s"] for e in later) / sum(e["images"] for e in later)


def first_s(result: Result) -> float:
    seconds: float = result["first_s"]
    return seconds


def photographs(data: Path, side: int, count: int, given: Path | None) -> Path:
    """Convert JPEGs whose longer side has ``side`` pixels, cut out of photographs."""
    if given is None:
        from sklearn.datasets import load_sample_images

        originals = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    else:
        originals = [Image.open(path).convert("RGB") for path in sorted(given.rglob("*.jpg"))]
    source, chance = data.with_name(f"{data.name}-photographs"), random.Random(0)
    for number, image in zip(range(count), itertools.cycle(originals), strict=False):
        path = source / ("left" if number % 2 else "right") / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        width, height = (round(size * chance.uniform(0.8, 1)) for size in image.size)
        left = chance.randint(0, image.width - width)
        cut = image.crop((left, 0, left + width, height))
        scale = side / max(cut.size)
        size = (round(cut.width * scale), round(cut.height * scale))
        cut.resize(size, Image.Resampling.LANCZOS).save(path, quality=90)
    convert(source, data, splits=[1], shards=4, workspace=data.with_name("workspace"))
    return data


def numbers(data: Path, count: int) -> Path:
    """Convert rows of three numbers."""
    chance, path = random.Random(0), data.with_suffix(".csv")
    with path.open("w") as file:
        file.write("a,b,c,good\n")
        for _ in range(count):
            values = (f"{chance.gauss():.4f}" for _ in range(3))
            file.write(f"{','.join(values)},{'yes' if chance.random() < 0.5 else 'no'}\n")
    convert(path, data, label="good", splits=[1], workspace=data.with_name("workspace"))
    return data


if __name__ == "__main__":
    main()
