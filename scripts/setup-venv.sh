#!/bin/sh
# Make a virtual environment; install the pinned requirements and timonel itself into it.
# usage: setup-venv.sh VENV [REQUIREMENTS]    without requirements: the installer alone
# PYTHON names the interpreter; without it, the newest supported one is used.
set -eu
venv=$1 requirements=${2:-}

python=$(sh scripts/find-python.sh ${PYTHON:+"$PYTHON"})
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
# Only what this script has made may be emptied.
made=$venv/.made-by-make
if [ ! -e "$made" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
    echo "$venv was not made by make, which would empty it. Rename it, or name another place, such as 'make test VENV=.venv-dev' or 'make demo DEMO_VENV=.venv-demo-2'." >&2
    exit 1
fi
[ -z "$requirements" ] ||
    echo "setting up $venv with $("$python" --version): 2 to 5 minutes the first time, and up to 4 GB of disk"
# The stamp tells a whole environment from one whose set-up was interrupted, which pip and uv cannot.
if [ ! -e "$venv/.ready" ] || [ "$("$venv/bin/python" --version 2>/dev/null)" != "$("$python" --version)" ]; then
    mkdir -p "$venv"
    touch "$made"
    find "$venv/" -mindepth 1 -maxdepth 1 ! -path "$venv/.made-by-make" -exec rm -rf {} +
    "$python" -m venv "$venv"
fi
rm -f "$venv/.ready"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements/bootstrap.txt
[ -n "$requirements" ] || exit 0
# The proxy of a company may have certificates that only the system knows; pip uses them too.
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
# Compile now: importing TensorFlow without bytecode takes over twice as long.
"$venv/bin/uv" pip sync --quiet --compile-bytecode --python "$venv/bin/python" requirements/bootstrap.txt "$requirements"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --editable .
