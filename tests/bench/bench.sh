#!/bin/sh
# `make bench`: every figure beside what it is compared with, taken in turns in one run.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
export B
model=${LLMD_MODEL:-$(sh tools/fetch-model.sh)}
echo "== through the rings: $(basename "$model")"
"$B/tests/bench/bench_streams" "$model"
echo "== what the scheduler promises"
"$B/tests/bench/bench_promises" "$model"
echo "== the path alone"
"$B/tests/bench/bench_rings" "$model"
echo "== an engine's death"
"$B/tests/bench/bench_death" "$model"
echo "== over HTTP"
if [ "${PEER:-0}" != 0 ]; then
    "$B/tests/bench/bench_gateway" "$model" "$(sh tests/bench/peer.sh)/llama-server"
else
    "$B/tests/bench/bench_gateway" "$model"
fi
