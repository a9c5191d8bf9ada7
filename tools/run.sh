#!/bin/sh
# `make run`: fetches the small model, starts an engine on an instance of its own, streams an answer, stops the engine.
# PROMPT="..." changes the message, N=... the number of tokens.
set -eu
cd "$(dirname "$0")/.."
B=${B:-build}
prompt=${PROMPT:-Why is the sea salty? Please answer in three sentences.}
model=$(sh tools/fetch-model.sh)
instance=run-$$
dir=$(mktemp -d "${TMPDIR:-/tmp}/llmd-run-XXXXXX")
export LLMD_RUNTIME_DIR="$dir"
engine=
stop() {
    if [ -n "$engine" ]; then
        kill "$engine" 2>/dev/null || true
        wait "$engine" 2>/dev/null || true
    fi
    rm -rf "$dir"
}
trap stop EXIT
trap 'exit 130' INT TERM
"$B/llmd" --model "$model" --instance "$instance" >"$dir/log" 2>&1 &
engine=$!
until grep -q ready "$dir/log"; do
    if ! kill -0 "$engine" 2>/dev/null; then
        cat "$dir/log" >&2
        echo "run: the engine did not start" >&2
        exit 1
    fi
    sleep 0.05
done
cat "$dir/log"
printf '\n> %s\n' "$prompt"
"$B/llmctl" -i "$instance" run --timing --temperature 0 -n "${N:-200}" "$prompt"
