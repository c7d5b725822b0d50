"""The job of the main path's benchmark: its data and script, run by us and by hand."""

from __future__ import annotations

import json
import re
import socket
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

import _measure
from _measure import Measured

HERE = Path(__file__).parent
TIMONEL = str(Path(sys.executable).with_name("timonel"))
SIZE, CHANNELS, CLASSES, BATCH = 32, 1, 10, 64
TRAIN_SCRIPT = """
import argparse

import keras

from timonel import data

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

shape = ({size}, {size})
train = data.load(split="train", batch_size={batch}, image_size=shape, channels={channels})
model = keras.Sequential(
    [
        keras.Input(({size}, {size}, {channels})),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense({classes}, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(train, epochs=options.epochs)
"""


def prepare(folder: Path) -> int:
    """Write digits and the script into ``folder``; return how many records are for training."""
    write_digits(folder / "digits")
    (folder / "train.py").write_text(
        TRAIN_SCRIPT.format(batch=BATCH, size=SIZE, channels=CHANNELS, classes=CLASSES)
    )
    return sum(1 for _ in (folder / "digits").rglob("*.png")) * 8 // 10


def convert(folder: Path) -> Measured:
    """Convert the digits with ``timonel convert``."""
    return _measure.run([TIMONEL, "convert", str(folder / "digits"), str(folder / "data")])


def convert_by_hand(folder: Path) -> Measured:
    """Convert the digits by hand."""
    return _measure.run(
        [sys.executable, str(HERE / "bare/convert.py"), str(folder / "digits"),
         str(folder / "bare-data")]
    )  # fmt: skip


def train_ours(folder: Path, epochs: int, env: Mapping[str, str], *, workers: int = 2) -> Measured:
    """Run ``timonel train`` and read from its records when it was ready and how long steps took."""
    measured = _measure.run(
        [TIMONEL, "train", str(folder / "train.py"), "--data", str(folder / "data"),
         "--workers", str(workers), "--set", f"epochs={epochs}"],
        env=env,
    )  # fmt: skip
    jobs = folder / "workspace/jobs"
    newest = max(jobs.iterdir(), key=lambda path: path.stat().st_mtime)
    status = json.loads((newest / "status.json").read_text())
    measured.marks["ready"] = status["started_at"]
    events = [
        json.loads(line)
        for line in (folder / "workspace/runs" / newest.name / "events.jsonl").open()
    ]
    durations = [
        event["metrics"]["step_ms"]
        for event in events
        if event["type"] == "metrics" and "step_ms" in event["metrics"]
    ]
    measured.marks["step_ms"] = statistics.median(durations[1:] or durations)
    return measured


def train_by_hand(folder: Path, records: int, epochs: int, *, workers: int = 2) -> Measured:
    """Train with the tutorial's loop in as many processes; return what the first one told."""
    arguments = [str(folder / "bare-data" / "train.tfrecord"), records, SIZE, CHANNELS, CLASSES]
    command = [sys.executable, str(HERE / "bare/mwms.py"), *map(str, [*arguments, BATCH, epochs])]
    envs = tf_configs(workers) if workers > 1 else [{}]
    return _measure.run_all([command] * workers, envs=envs)[0]


def step_ms(output: str, steps: int) -> float:
    """Return the median step of a bare script, without its first epoch, which traces."""
    epochs = [float(seconds) for seconds in re.findall(r"^EPOCH (\S+)", output, re.MULTILINE)]
    return 1000 * statistics.median(epochs[1:]) / steps


def tf_configs(workers: int) -> list[dict[str, str]]:
    """Return the environment of each task of a cluster on free ports."""
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(workers)]}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
        for i in range(workers)
    ]


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_digits(folder: Path) -> None:
    """Write scikit-learn's handwritten digits as images into label folders."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9375).astype("uint8")).save(path)
