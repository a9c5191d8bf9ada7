#!/bin/sh
# `make fuzz`: run.sh NAME... builds the fuzzers with clang and runs each for FUZZ_SECONDS, stopping at the first finding.
# Starts from tests/fuzz/corpus/NAME; what it adds lies in $B/corpus/NAME, reproducers in $B/findings. To take new inputs
# over into the small committed corpus, the smallest ones that reach everything:
#   build-fuzz/tests/fuzz/fuzz_NAME -merge=1 tests/fuzz/corpus/NAME build-fuzz/corpus/NAME
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build-fuzz}
MAKE=${MAKE:-make}
CC=${CC:-clang}
seconds=${FUZZ_SECONDS:-60}
clang_hint() {
    echo "fuzz: $1; the fuzzers are optional and need clang. As root:  apt-get install -y clang libclang-rt-14-dev" >&2
    exit 1
}
command -v "$CC" >/dev/null 2>&1 || clang_hint "$CC is not installed"
mkdir -p "$B/findings"
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n); int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }' |
    "$CC" -x c -fsanitize=fuzzer,address,undefined -o "$B/probe" - 2>"$B/probe.log" ||
    clang_hint "$CC cannot link a fuzzer (see $B/probe.log)"

set -- $(for name; do echo "$B/tests/fuzz/fuzz_$name"; done)
# -Wno-pass-failed: with every branch counted, clang cannot unroll the loops that ask for it
$MAKE --no-print-directory -s B="$B" CC="$CC" CFLAGS='-O1 -g -Wno-pass-failed' SAN=address,undefined,fuzzer-no-link "$@"

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:quarantine_size_mb=16
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
for fuzzer; do
    name=${fuzzer##*/fuzz_} log=$B/findings/${fuzzer##*/fuzz_}.log
    dict=
    case $name in # long inputs where there is something to be found in them
    gguf) bytes=16384 ;;
    control | config | template) bytes=4200 ;;
    *) bytes=1024 ;;
    esac
    [ ! -f "tests/fuzz/$name.dict" ] || dict=-dict=tests/fuzz/$name.dict
    mkdir -p "$B/corpus/$name" "tests/fuzz/corpus/$name"
    echo "fuzz: $name for $seconds s"
    if ! "$fuzzer" -max_total_time="$seconds" -max_len="$bytes" -timeout=20 -rss_limit_mb=1024 -malloc_limit_mb=512 \
        -print_final_stats=1 -artifact_prefix="$B/findings/$name-" $dict "$B/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
        tail -n 60 "$log"
        file=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "fuzz: $name FAILED; the whole log: $log"
        [ -z "$file" ] || echo "fuzz: the input lies in $file; again with:  $fuzzer $file"
        exit 1
    fi
    grep -E 'number_of_executed_units|new_units_added|peak_rss_mb' "$log"
done
echo "fuzz: $# fuzzers, no finding"
