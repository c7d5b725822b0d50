#!/bin/sh
# Run the demo and the tests with each supported Python found, each in environments of its own.
set -eu
pythons=$(sh scripts/find-python.sh --all)
printf 'Testing with:\n%s\n' "$pythons"
failed='' summary=''
IFS='
'
for python in $pythons; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for target in demo test; do
        started=$(date +%s)
        if ${MAKE:-make} "$target" PYTHON="$python" VENV=".venv-$version" DEMO_VENV=".venv-demo-$version"; then
            outcome=passed
        else
            outcome=FAILED failed=1
        fi
        summary="${summary}Python $version: $target $outcome in $(($(date +%s) - started)) s
"
    done
done
printf '%s' "$summary"
[ -z "$failed" ]
