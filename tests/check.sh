#!/bin/sh
# Runs the test programs: check.sh quick|all. Called by `make check` and `make check-all`.
#   1. every test, plain build
#   2. unit, fault and end-to-end tests with ASan + UBSan, and the fuzzers over their corpora
#   3. the tests of threads and rings with TSan
# Each program prints cmocka's summary; a failing one its whole output. Nothing stays: temporary files lie in one folder, the
# boards of engines that a test could not stop are removed, and an interrupted run ends its programs.
set -u
cd "$(dirname "$0")/.."
mode=${1:-quick}
B=${B:-build}
MAKE=${MAKE:-make}
jobs=${JOBS:-2}
export GOLDEN_DIR=${GOLDEN:-tests/golden}
[ -n "$GOLDEN_DIR" ] || GOLDEN_DIR=tests/golden
[ "$mode" = all ] && export LLMD_EXHAUSTIVE=1
LLMD_MODEL=${LLMD_MODEL:-$(sh tools/fetch-model.sh)} || exit 1
export LLMD_MODEL
# a sanitizer's finding is a failure; leaks are looked for too
export ASAN_OPTIONS=abort_on_error=0:exitcode=99:detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=exitcode=98:halt_on_error=1

logs=$(mktemp -d "${TMPDIR:-/tmp}/llmd-check-XXXXXX")
chmod 711 "$logs" # tests act as other users too
export TMPDIR="$logs" # sockets of the tests lie below it: their names have 107 bytes in all
trap 'rm -rf "$logs"' EXIT
trap stop INT TERM HUP
failed=0 passed=0 programs=0 running=

stop() {
    trap '' INT TERM HUP
    [ -z "$running" ] || kill "$running" 2>/dev/null
    for job in "$logs"/*.job; do
        [ ! -e "$job" ] || kill "$(cat "$job")" 2>/dev/null
    done
    while ls "$logs"/*.job >"$logs/jobs" 2>/dev/null; do sleep 0.1; done
    exit 1
}

# run_one BUILD PROGRAM LOGS: one test program, its output to a log. timeout gives it a process group of its own, which gets
# the signals that we pass on. Instances are named after the test's process: so their boards are known.
cat >"$logs/run_one" <<'EOS'
b=$1 program=$2 logs=$3
log=$logs/$(echo "$program" | tr / _).log
echo $$ >"$log.job"
start=$(date +%s)
B=$b env --default-signal=INT,QUIT timeout -k 10 1500 sh -c 'echo $$ >"$1.pid"; exec "$2"' - "$log" "$program" >"$log" 2>&1 &
child=$!
trap 'kill "$child"' TERM
wait "$child"
rc=$?
[ "$rc" -le 128 ] || wait "$child" # the trap came between
pid=$(cat "$log.pid")
rm -f /dev/shm/llmd.t"$pid"-* /dev/shm/llmd.board-"$pid"
echo "$rc" >"$log.rc"
summary=$(grep -aE '^\[  PASSED  \]|^\[  (FAILED |SKIPPED)  *\] [0-9]+ test' "$log" | tr '\n' ' ')
if [ "$rc" -eq 0 ] && [ "$summary" ]; then
    echo "$program: $summary($(($(date +%s) - start)) s)"
else
    case $rc in
    0) why=': it said nothing of its tests' ;;
    124 | 137) why=': it did not end in time' ;;
    *) why= ;;
    esac
    echo "$rc$why" >"$log.rc"
    echo "==== $program FAILED with status $rc$why"
    tail -c 20000 "$log"
    echo "==== end of $program"
fi
rm -f "$log.job"
EOS

run_all() { # BUILD PROGRAM...
    b=$1
    shift
    for program; do echo "$program"; done >"$logs/programs"
    xargs -P "$jobs" -I{} sh "$logs/run_one" "$b" {} "$logs" <"$logs/programs" &
    running=$!
    wait "$running"
    for program; do
        log=$logs/$(echo "$program" | tr / _).log
        n=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | awk '{s += $1} END {print s + 0}')
        passed=$((passed + n))
        programs=$((programs + 1))
        if [ "$(cat "$log.rc" 2>/dev/null)" != 0 ]; then
            bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$log" | head -1)
            failed=$((failed + ${bad:-1}))
        fi
    done
}

build() { # B SAN TARGET...
    b=$1 san=$2
    shift 2
    echo "building $b ..."
    mkdir -p "$b"
    flock "$b/.lock" $MAKE --no-print-directory -s -j2 B="$b" SAN="$san" "$@" >"$logs/build" 2>&1 ||
        { cat "$logs/build"; echo "check: the build of $b failed"; exit 1; }
}

sources() { ls "$@" 2>/dev/null | sed 's/\.c$//'; }

build "$B" "" test-build
run_all "$B" $(sources tests/unit/test_*.c tests/conformance/test_*.c tests/fault/test_*.c tests/e2e/test_*.c | sed "s|^|$B/|")

# sanitizers: where bytes of others are read and where threads meet. The tests of the real model's numbers are left out:
# their code is run by the tests of the small models.
asan=$(sources tests/unit/test_*.c tests/fault/test_*.c tests/e2e/test_*.c | grep -v -f tests/no-asan.txt | sed "s|^|$B-asan/|")
fuzz=$(sources tests/fuzz/fuzz_*.c | sed "s|^|$B-asan/|")
build "$B-asan" address,undefined $asan $fuzz "$B-asan/llmd" "$B-asan/llmctl" "$B-asan/llm-gateway"
run_all "$B-asan" $asan $fuzz

tsan=$(sed 's/#.*//; /^[[:space:]]*$/d' tests/tsan.txt | sed "s|^|$B-tsan/|")
build "$B-tsan" thread $tsan
run_all "$B-tsan" $tsan

echo "$programs test programs"
echo "total: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
