#!/bin/sh
# Resolve the peers' requirements.in into pinned requirements, with hashes.
# usage: lock.sh UV
set -eu
uv=$1
cd "$(dirname "$0")"
for peer in bentoml mlserver kserve ray datasets; do
    (cd "$peer" && "$uv" pip compile --quiet --python-version 3.11 --python-platform linux \
        --only-binary :all: --no-binary promise --generate-hashes --no-annotate \
        --custom-compile-command "make lock-peers" requirements.in -o requirements.txt)
done
