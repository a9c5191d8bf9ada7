#!/bin/sh
# The peer that `make bench PEER=1` compares with: llama.cpp, from the source package of a pinned version of llama-cpp-python.
#   peer.sh             prints a folder with llama-server, llama-batched-bench and llama-quantize. Those that are not in the cache
#                       are built first (once, 12 to 25 minutes for all of them). It wants cmake and a C++ compiler.
#   peer.sh q4_0 MODEL  prints the path of MODEL requantized to Q4_0 by llama-quantize, made first if it is not in the cache.
#                       Pure: every matrix becomes Q4_0, a tied output head too (the default would leave it in Q8_0). It is the
#                       format that llama.cpp has its fastest kernels for, so this file is the peer at its best.
set -eu
version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
cache=${LLMD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llmd}
out=$cache/llama.cpp-$version
tools="llama-server llama-batched-bench llama-quantize"

missing=
for tool in $tools; do
    [ -x "$out/$tool" ] || missing="$missing $tool"
done

build() {
    for tool in cmake c++; do
        if ! command -v $tool >/dev/null; then
            echo "peer: $tool is missing: apt-get install -y cmake g++" >&2
            exit 1
        fi
    done
    mkdir -p "$out"
    tmp=$(mktemp -d "$cache/peer.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 1' INT TERM
    echo "fetching the source of llama-cpp-python $version (77 MB, once) ..." >&2
    echo "llama-cpp-python==$version --hash=sha256:$sha256" >"$tmp/requirements.txt"
    # pip asks the package's build tools for its name: it fetches them, for the time of this command
    python3 -m pip download -q --disable-pip-version-check --no-deps --no-cache-dir --no-binary llama-cpp-python \
        --require-hashes -r "$tmp/requirements.txt" -d "$tmp" >&2
    tar -xzf "$tmp"/llama_cpp_python-*.tar.gz -C "$tmp"
    echo "building$missing of llama.cpp (up to 25 minutes, once) ..." >&2
    cmake -S "$tmp/llama_cpp_python-$version/vendor/llama.cpp" -B "$tmp/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        >"$tmp/log" 2>&1 || { tail -20 "$tmp/log" >&2; exit 1; }
    # shellcheck disable=SC2086 # words
    cmake --build "$tmp/build" -j "$(nproc)" --target $missing >>"$tmp/log" 2>&1 || { tail -20 "$tmp/log" >&2; exit 1; }
    for tool in $missing; do
        cp "$tmp/build/bin/$tool" "$out/.$tool.$$"
        mv "$out/.$tool.$$" "$out/$tool"
    done
}

# Named after the bytes it is made of: another model of the same name is another file.
requantize() {
    model=$1
    if [ ! -r "$model" ]; then
        echo "peer: there is no model $model" >&2
        exit 1
    fi
    name=$(basename "$model" .gguf)-$(sha256sum <"$model" | cut -c 1-16)-Q4_0-pure.gguf
    if [ ! -r "$out/$name" ]; then
        echo "requantizing $(basename "$model") to Q4_0 with llama-quantize ..." >&2
        part=$out/.$name.$$
        trap 'rm -f "$part" "$part.log"' EXIT
        trap 'exit 1' INT TERM
        if ! "$out/llama-quantize" --allow-requantize --pure "$model" "$part" Q4_0 "$(nproc)" >"$part.log" 2>&1; then
            tail -5 "$part.log" >&2
            echo "peer: llama-quantize cannot make Q4_0 of $model" >&2
            exit 1
        fi
        mv "$part" "$out/$name"
    fi
    echo "$out/$name"
}

case ${1:-} in
"" | q4_0) ;;
*)
    echo "usage: peer.sh [q4_0 MODEL]" >&2
    exit 2
    ;;
esac
[ -z "$missing" ] || (build)
if [ "${1:-}" = q4_0 ]; then
    requantize "${2:-}"
else
    echo "$out"
fi
