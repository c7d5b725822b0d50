#!/bin/sh
# Resolve pyproject.toml into the pinned requirement files, with hashes.
# usage: lock.sh UV
set -eu
uv=$1
compile() {
    "$uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_31 --generate-hashes \
        --no-annotate --custom-compile-command "make lock" "$@"
}
# Without vizier, which requires a nightly build, and uv, which bootstrap.txt pins.
compile pyproject.toml --no-emit-package uv --extra cmaes --extra endpoints --extra kubernetes --extra legacy-keras --extra mlflow --extra mpi --extra mysql \
    --extra postgresql --extra quantization --extra wandb --extra gcs --extra http --extra otel --extra s3 --extra tensorboard --group dev --group docs \
    -o requirements/dev.txt
compile pyproject.toml --extra mlflow -c requirements/dev.txt -o requirements/demo.txt
# Not with the others: Beam 2.77 needs a pillow below 13.
compile pyproject.toml --extra dataflow --extra s3 --group dev -o requirements/beam.txt
compile --group browser -c requirements/dev.txt -o requirements/browser.txt
compile --group schemathesis -o requirements/schemathesis.txt
