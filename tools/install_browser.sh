#!/usr/bin/env bash
# Makes sure that there is a Chromium for the browser tests: the one at hand, the system's package, or Playwright's own.
set -eu
python=$1

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then
        echo "browser: $(command -v "$name")"
        exit 0
    fi
done

if command -v apt-get >/dev/null; then
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then as_root="sudo -n"; fi
    # apt reads signatures as a user of its own, who needs a folder for temporary files.
    folder=$(mktemp -d)
    chmod 1777 "$folder"
    trap 'rm -rf "$folder"' EXIT
    as_root="$as_root env TMPDIR=$folder"
    if $as_root apt-get update -q && $as_root apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; then
        exit 0
    fi
    echo "browser: the system's package could not be installed, taking Playwright's own build" >&2
fi
"$python" -m pip install --quiet -c "$(dirname "$0")/../constraints.txt" playwright
"$python" -m playwright install chromium
