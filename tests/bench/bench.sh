#!/bin/sh
# `make bench`: every figure beside what it is compared with, taken in turns in one run.
#   PEER=1             also llama.cpp, which tests/bench/peer.sh builds once
#   ONLY="speed ..."   some of the parts: speed contention overhead promises rings death gateway; kernels only when it is named
#   ROUNDS=N           of the part "speed" (5)
# The part "speed" also writes $B/bench/speed.json, throughput.svg and gaps.svg.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
export B
model=${LLMD_MODEL:-$(sh tools/fetch-model.sh)}
parts=${ONLY:-speed contention overhead promises rings death gateway}
for part in $parts; do
    case $part in
    speed | contention | overhead | promises | rings | death | gateway | kernels) ;;
    *)
        echo "bench: there is no part $part: speed contention overhead promises rings death gateway kernels" >&2
        exit 2
        ;;
    esac
done
peer='' q4_0=''
if [ "${PEER:-0}" != 0 ]; then
    peer=$(sh tests/bench/peer.sh)
    q4_0=$(sh tests/bench/peer.sh q4_0 "$model")
fi

heading() {
    case $1 in
    speed) echo "== speed, beside this machine's limits" ;;
    contention) echo "== steps beside a busy process" ;;
    overhead) echo "== the engine's own part of a step" ;;
    promises) echo "== what the scheduler promises" ;;
    rings) echo "== the path alone" ;;
    death) echo "== an engine's death" ;;
    gateway) echo "== over HTTP" ;;
    kernels) echo "== kernels alone" ;;
    esac
}

for part in $parts; do
    heading "$part"
    case $part in
    speed) set -- "$model" ${ROUNDS:+--rounds "$ROUNDS"} ${peer:+--peer "$peer" --peer-q4_0 "$q4_0"} ;;
    kernels) set -- ;;
    gateway) set -- "$model" ${peer:+"$peer/llama-server"} ;;
    *) set -- "$model" ;;
    esac
    "$B/tests/bench/bench_$part" "$@"
done
