#!/usr/bin/env bash
# Prints the first Python of at least 3.11 among the arguments and the usual names.
set -u
seen=""
for candidate in "$@" python3 python3.13 python3.12 python3.11 python3.14 python; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        command -v "$candidate"
        exit 0
    fi
    seen="$seen $candidate is $version;"
done
echo "brimful needs Python 3.11 or newer, and found none (${seen:- no Python at all;} looked for python3, python3.11 to 3.14, python)." >&2
echo "Install one and say which it is: make setup PYTHON=/path/to/python3.12" >&2
exit 1
