#!/bin/sh
# Make a virtual environment; install the pinned requirements and timonel itself into it.
# usage: setup-venv.sh PYTHON VENV [REQUIREMENTS]    without requirements: the installer alone
set -eu
python=$1 venv=$2 requirements=${3:-}

command -v "$python" >/dev/null 2>&1 || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "expected Python 3.11 or newer, found $("$python" --version 2>&1): set PYTHON=/path/to/python3.11" >&2
    exit 1
}
# Debian splits the part of Python that makes environments into a package of its own.
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "$python cannot make environments: running 'apt-get install $package'"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null
    else
        echo "$python cannot make environments. On Debian and Ubuntu: sudo apt-get install $package" >&2
        exit 1
    fi
fi
[ -z "$requirements" ] || echo "setting up $venv (a few minutes the first time: TensorFlow alone is 550 MB)"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements/bootstrap.txt
[ -n "$requirements" ] || exit 0
"$venv/bin/uv" pip sync --quiet --python "$venv/bin/python" requirements/bootstrap.txt "$requirements"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --editable .
