#!/bin/sh
# Print the path of the newest Python that timonel supports; with --all, of one for each version.
# With PYTHON, check that one and print it as given.
# usage: find-python.sh [--all | PYTHON]
set -eu
named=${1:-} all=
[ "$named" != --all ] || named='' all=yes

# Running it tells: pyenv's shims of inactive versions fail.
supported() {
    [ "$("$1" -c 'import sys; print((3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null)" = True ]
}

if [ -n "$named" ]; then
    supported "$named" || {
        found=$("$named" --version 2>/dev/null) || found='a program that does not run'
        echo "PYTHON=$named: expected Python 3.11, 3.12 or 3.13, got $found" >&2
        exit 1
    }
    echo "$named"
    exit 0
fi

found=
for version in 3.13 3.12 3.11 3; do
    [ "$version$found" != 3yes ] || break
    for python in "python$version" ${all:+"${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python}; do
        supported "$python" || continue
        "$python" -c 'import sys; print(sys.executable)'
        [ -n "$all" ] || exit 0
        found=yes
        break
    done
done
[ -z "$found" ] || exit 0
echo "timonel needs Python 3.11, 3.12 or 3.13. Install it with 'apt-get install python3 python3-venv' (Debian 12 and 13, Ubuntu 24.04) or 'dnf install python3.13' (Fedora), or name one with PYTHON=/path/to/python3." >&2
exit 1
