"""Run a task of a training job: ``python -m timonel.training.worker --workspace URI --run ID``."""

from __future__ import annotations

import argparse
import atexit
import os
import sys

from timonel.engines.base import EXIT_DONE, EXIT_RETRYABLE
from timonel.training.spec import add_document_options, document_path
from timonel.training.worker.bootstrap import run


def main() -> int:
    """Run the task described by the arguments and the environment."""
    parser = argparse.ArgumentParser(prog="python -m timonel.training.worker")
    add_document_options(parser)
    return run(document_path(parser.parse_args()), os.environ)


if __name__ == "__main__":
    code = main()
    if code != EXIT_DONE:
        # Orderly shutdown of a cluster that lost a member may hang or abort.
        if code != EXIT_RETRYABLE and "TF_CONFIG" not in os.environ:
            atexit._run_exitfuncs()  # of the script; no public way without waiting for threads
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
