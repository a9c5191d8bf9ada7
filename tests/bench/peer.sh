#!/bin/sh
# Prints a folder with llama-server and llama-batched-bench of the peer that `make bench PEER=1` compares with: llama.cpp, from
# the source package of a pinned version of llama-cpp-python. Builds them first (once, 12 to 25 minutes) if they are not in the
# cache. It wants cmake and a C++ compiler.
set -eu
version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
cache=${LLMD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmd}
out=$cache/llama.cpp-$version
if [ -x "$out/llama-server" ] && [ -x "$out/llama-batched-bench" ]; then
    echo "$out"
    exit 0
fi
for tool in cmake c++; do
    if ! command -v $tool >/dev/null; then
        echo "peer: $tool is missing: apt-get install -y cmake g++" >&2
        exit 1
    fi
done
mkdir -p "$cache"
tmp=$(mktemp -d "$cache/peer.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "fetching the source of llama-cpp-python $version (77 MB, once) ..." >&2
echo "llama-cpp-python==$version --hash=sha256:$sha256" >"$tmp/requirements.txt"
python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir --no-binary :all: --no-build-isolation \
    --require-hashes -r "$tmp/requirements.txt" -d "$tmp" >&2
tar -xzf "$tmp"/llama_cpp_python-*.tar.gz -C "$tmp"
echo "building llama.cpp (12 to 25 minutes, once) ..." >&2
cmake -S "$tmp/llama_cpp_python-$version/vendor/llama.cpp" -B "$tmp/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    >"$tmp/log" 2>&1 || { tail -20 "$tmp/log" >&2; exit 1; }
cmake --build "$tmp/build" -j "$(nproc)" --target llama-server llama-batched-bench >>"$tmp/log" 2>&1 ||
    { tail -20 "$tmp/log" >&2; exit 1; }
mkdir -p "$out"
cp "$tmp/build/bin/llama-server" "$tmp/build/bin/llama-batched-bench" "$out/"
echo "$out"
