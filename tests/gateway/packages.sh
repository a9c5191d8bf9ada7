#!/bin/sh
# packages.sh NAME...: prints a folder (for PYTHONPATH) with these packages of PyPI, which are fetched once. Fails with a
# sentence where PyPI cannot be reached.
set -eu
cache=${XDG_CACHE_HOME:-$HOME/.cache}/llmd/pypi-$(echo "$*" | tr -c 'A-Za-z0-9\n' _)
mkdir -p "$(dirname "$cache")"
exec 9>"$cache.lock"
flock 9
if [ ! -e "$cache/complete" ]; then
    rm -rf "$cache" "$cache.part"
    PIP_ROOT_USER_ACTION=ignore timeout 240 python3 -m pip install -qq --disable-pip-version-check --retries 1 --timeout 10 --target "$cache.part" "$@" >&2 ||
        { echo "packages.sh: $* cannot be fetched from PyPI" >&2; rm -rf "$cache.part"; exit 1; }
    touch "$cache.part/complete"
    mv "$cache.part" "$cache"
fi
echo "$cache"
