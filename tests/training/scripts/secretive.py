"""Parses secrets as a script does that fetches its data: from defaults, options and a mapping."""

from __future__ import annotations

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--auth-token")
parser.add_argument("--key-dim", type=int, default=64)
parser.add_argument("--api-token", default="s3cr3t-default")
parser.add_argument("-p", "--password", type=int, default=1234567)
parser.add_argument("--private-key", type=Path, default=Path("s3cr3t/key"))
parser.add_argument("--login", default={"user": "ada", "password": "s3cr3t-nested"})
parser.add_argument("--source", default="https://ada:s3cr3t-url@example.com/data")
parser.add_argument("--secrets", nargs="*", default=["s3cr3t-list"])
parser.parse_args()
