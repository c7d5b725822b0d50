#!/bin/sh
# Make the virtual environment of a peer of the benchmark of serving.
# usage: setup.sh UV PYTHON PEER
set -eu
uv=$1 python=$2 peer=$3
cd "$(dirname "$0")/$peer"
echo "setting up $peer" >&2
"$uv" venv --quiet --clear --python "$python" .venv
"$uv" pip install --quiet --python .venv/bin/python --require-hashes -r requirements.txt
sha256sum requirements.txt >.venv/.ready
