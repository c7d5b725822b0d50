"""A trial that reports a parabola, and its latency as cloudml-hypertune does."""

import argparse
import json
import os
import time
from pathlib import Path

from timonel.training import report

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--pause", type=float, default=0.0)
args = parser.parse_args()

path = Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
path.parent.mkdir(parents=True, exist_ok=True)
for epoch in range(args.epochs):
    entry = {"timestamp": time.time(), "trial": "0", "latency": args.x, "global_step": epoch}
    path.write_text(json.dumps(entry) + "\n")
    report({"score": -((args.x - 0.3) ** 2)}, step=epoch)
    time.sleep(args.pause)
