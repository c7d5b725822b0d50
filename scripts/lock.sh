#!/bin/sh
# Resolve pyproject.toml into the pinned requirement files, with hashes, for all supported Pythons at once.
# usage: lock.sh UV
set -eu
uv=$1
compile() {
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-annotate --custom-compile-command "make lock" "$@"
}
# All extras but beam and dataflow (a pillow below 13), vizier (a nightly build), and uv, which bootstrap.txt pins.
extras="cmaes endpoints gcs http kubernetes legacy-keras mlflow mpi mysql otel postgresql quantization s3 tensorboard wandb"
set -- --no-emit-package uv
for extra in $extras; do
    set -- "$@" --extra "$extra"
done
compile pyproject.toml "$@" --group dev --group docs -o requirements/dev.txt
# Upgraded, or the versions of the last lock would be kept, though lower ones are allowed.
compile pyproject.toml "$@" --resolution lowest-direct --upgrade -o requirements/lowest.txt
compile pyproject.toml --extra mlflow -c requirements/dev.txt -o requirements/demo.txt
compile pyproject.toml --extra dataflow --extra s3 --group dev -o requirements/beam.txt
compile --group browser -c requirements/dev.txt -o requirements/browser.txt
