#!/bin/sh
# Print the path of the newest Python that timonel supports, or with --all of one for each version.
# usage: find-python.sh [--all]
set -eu

# A name on PATH need not run: pyenv has one for each version that it has, chosen or not.
supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

real_path() {
    "$1" -c 'import sys; print(sys.executable)'
}

if [ "${1:-}" = --all ]; then
    for version in 3.11 3.12 3.13; do
        for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
            if supported "$python"; then
                real_path "$python"
                break
            fi
        done
    done
    exit 0
fi

for python in python3.13 python3.12 python3.11 python3; do
    if supported "$python"; then
        real_path "$python"
        exit 0
    fi
done
echo "timonel needs Python 3.11, 3.12 or 3.13. Install it with 'apt-get install python3 python3-venv' (Debian 12 and 13, Ubuntu 24.04) or 'dnf install python3.13' (Fedora), or name one with PYTHON=/path/to/python3." >&2
exit 1
