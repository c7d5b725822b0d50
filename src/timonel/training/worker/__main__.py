"""Run one task of a training job: ``python -m timonel.training.worker --spec FILE``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from timonel.engines.base import EXIT_DONE
from timonel.training.worker.bootstrap import run


def main() -> int:
    """Run the task described by the arguments and the environment."""
    parser = argparse.ArgumentParser(prog="python -m timonel.training.worker")
    parser.add_argument("--spec", type=Path, required=True, help="the job's train.json")
    return run(parser.parse_args().spec, os.environ)


if __name__ == "__main__":
    code = main()
    if code != EXIT_DONE:
        # Orderly shutdown of a cluster that lost a member may hang or abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
