"""A trial without training: reports the values of a parabola over epochs."""

import argparse
import math
import sys
import time

from timonel.training import report

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float, required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--pause", type=float, default=0.0)
parser.add_argument("--fail-above", type=float, default=math.inf)
parser.add_argument("--nan-below", type=float, default=-math.inf)
args = parser.parse_args()

if args.x > args.fail_above:
    sys.exit(f"x is too large: {args.x}")
for epoch in range(args.epochs):
    loss = (args.x - 0.3) ** 2 + 1 / (1 + epoch)
    report({"score": math.nan if args.x < args.nan_below else -loss, "loss": loss}, step=epoch)
    time.sleep(args.pause)
