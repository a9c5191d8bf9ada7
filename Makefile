# llmd - `make help` lists the targets.

VERSION := 0.1.0
B       ?= build
CC      ?= cc
OBJCOPY ?= objcopy
# sanitizer builds: less to compile matters more than speed
OPT     ?= $(if $(SAN),-O1,-O2)
# SAN=address,undefined or SAN=thread: a build with sanitizers (give it a B of its own)
SAN     ?=
# GOLDEN=DIR: `make check` runs the full reference data of that folder instead of tests/golden
GOLDEN  ?=

WARN    := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wno-missing-field-initializers
CFLAGS  ?= $(OPT) -g
ALL_CFLAGS := -std=gnu17 -D_GNU_SOURCE= $(WARN) $(CFLAGS) -ffp-contract=off -fno-math-errno -fno-strict-aliasing -pthread -Ishm -MMD -MP \
              -DLLMD_VERSION='"$(VERSION)"' $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
LDFLAGS ?=
ALL_LDFLAGS := -pthread $(LDFLAGS) $(if $(SAN),-fsanitize=$(SAN))

# ---- what is built from what ----
SHM_SRC    := $(wildcard shm/*.c)
CLIENT_SRC := $(wildcard client/*.c client/text/*.c)
GPU_SRC    := $(wildcard gpu/*.c gpu/cpu/*.c)
APP_SRC    := $(wildcard appliance/*.c appliance/model/*.c)
CTL_SRC    := $(wildcard tools/llmctl/*.c)
GW_SRC     := $(wildcard tools/gateway/*.c)
MODEL_SRC  := $(wildcard appliance/model/*.c)
SUPPORT_SRC:= $(wildcard tests/support/*.c)
TEST_SRC   := $(wildcard tests/unit/test_*.c tests/conformance/test_*.c tests/e2e/test_*.c tests/fault/test_*.c)
FUZZ_SRC   := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC  := $(wildcard tests/bench/bench_*.c)
BENCH_LIB  := $(filter-out $(BENCH_SRC),$(wildcard tests/bench/*.c))

obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
SHM_O := $(call obj,$(SHM_SRC))
CLIENT_O := $(call obj,$(CLIENT_SRC))
GPU_O := $(call obj,$(GPU_SRC))
APP_O := $(call obj,$(APP_SRC))
CTL_O := $(call obj,$(CTL_SRC))
GW_O := $(call obj,$(GW_SRC)) $(patsubst %,$(B)/obj/%.o,$(wildcard tools/gateway/page.html))
MODEL_O := $(call obj,$(MODEL_SRC))
SUPPORT_O := $(call obj,$(SUPPORT_SRC))
EXAMPLES := $(patsubst %.c,$(B)/%,$(wildcard client/examples/*.c))
TESTS := $(patsubst %.c,$(B)/%,$(TEST_SRC))
BENCHES := $(patsubst %.c,$(B)/%,$(BENCH_SRC))
# everything of the engine but its main(), for tests
CORE_O := $(filter-out $(B)/obj/appliance/main.o,$(APP_O)) $(GPU_O) $(CLIENT_O) $(SHM_O)

CLIENT_LIBS := -lpcre2-8 -lutf8proc -lmsgpackc -lm
ENGINE_LIBS := -luring -linih -lnuma -lmsgpackc -lxxhash -lm
JEMALLOC    := $(if $(SAN),,-ljemalloc)

include etc/install.mk

.PHONY: all help deps run check check-all model-check abi-check test-build fuzz bench clean format
.DEFAULT_GOAL := all
# as many compilers as CPUs, unless the caller says how many
PARALLEL = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))

all: deps ## build everything into build/
	@$(MAKE) -s --no-print-directory $(PARALLEL) $(B)/llmd $(B)/llmctl $(B)/llm-gateway $(B)/libllmclient.so $(B)/libllmclient.a $(EXAMPLES)

help: ## this list
	@echo 'make [TARGET] [B=build-folder] [CC=gcc|clang] [SAN=address,undefined|thread] [GOLDEN=folder]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile etc/install.mk

deps: ## install the Debian packages that are missing (through sudo where not root)
	@sh etc/deps.sh

run: all ## fetch the small model, start an engine, stream an answer (PROMPT="...")
	@B=$(B) sh tools/run.sh

check: all ## run the tests (plain, ASan + UBSan, TSan); fetches the small model
	@B=$(B) GOLDEN='$(GOLDEN)' MAKE='$(MAKE)' CC='$(CC)' sh tests/check.sh quick

check-all: all ## the same with exhaustive shapes and seeds, and soaks
	@B=$(B) GOLDEN='$(GOLDEN)' MAKE='$(MAKE)' CC='$(CC)' sh tests/check.sh all

model-check: ## the ring protocol's models (FAULT=noC1 ...: with that fault, shows what breaks)
	@$(MAKE) -s --no-print-directory $(PARALLEL) $(B)/tests/model/main
	@$(B)/tests/model/main $(FAULT)

abi-check: ## sizes and offsets of the contract against tests/abi/abi.txt (UPDATE=1: a deliberate change)
	@$(MAKE) -s --no-print-directory $(B)/tests/abi/main
	@$(if $(UPDATE),$(B)/tests/abi/main >tests/abi/abi.txt,$(B)/tests/abi/main | diff -u tests/abi/abi.txt - && echo 'the contract is unchanged')

sim: ## the scheduler under a virtual clock, beside first come (SIM="--requests N --seed S --workload NAME")
	@$(MAKE) -s --no-print-directory $(PARALLEL) $(B)/tests/sim/main
	@$(B)/tests/sim/main $(SIM)

FUZZ ?= $(patsubst tests/fuzz/fuzz_%.c,%,$(FUZZ_SRC))
fuzz: deps ## run each fuzzer for FUZZ_SECONDS=60 (clang; FUZZ="gguf ..." for some of them)
	@B=$(B)-fuzz MAKE='$(MAKE)' sh tests/fuzz/run.sh $(FUZZ)

bench: all ## speed beside this machine's limits: table, JSON, plots (PEER=1: and llama.cpp; ONLY="speed ...")
	@$(MAKE) --no-print-directory bench-build
	@B=$(B) PEER=$(PEER) ONLY='$(ONLY)' ROUNDS='$(ROUNDS)' sh tests/bench/bench.sh

clean: ## remove build folders
	rm -rf build build-*

format: ## clang-format every source file
	clang-format -i $$(git ls-files '*.c' '*.h')

# ---- rules ----
.PHONY: test-build bench-build
test-build: $(TESTS) $(BUILT_FILES) $(EXAMPLES)
bench-build: $(BENCHES)
$(BENCHES): $(call obj,$(BENCH_LIB))
$(B)/tests/unit/test_bench_peer_output: $(call obj,tests/bench/peer_output.c)
$(B)/tests/unit/test_bench_plot: $(call obj,tests/bench/plot.c)
$(B)/tests/unit/test_bench_work: $(call obj,tests/bench/work.c)
RING_MODEL_O := $(call obj,$(filter-out tests/model/main.c,$(wildcard tests/model/*.c)))
$(filter %/test_fences,$(TESTS)) $(filter $(B)/tests/unit/test_ring_model%,$(TESTS)) $(B)/tests/model/main: $(RING_MODEL_O)

# what reads requests, without the HTTP library
GW_PARSE_O := $(patsubst %,$(B)/obj/tools/gateway/%.o,board body buffer chat keys params problem prompt tools)
$(filter $(B)/tests/unit/test_gateway%,$(TESTS)) $(B)/tests/fuzz/fuzz_gateway_request: $(GW_PARSE_O)

SIM_O := $(call obj,$(filter-out tests/sim/main.c,$(wildcard tests/sim/*.c)))
$(filter $(B)/tests/unit/test_simulator%,$(TESTS)) $(B)/tests/sim/main: $(SIM_O)

# AVX2 and AVX-512 sources: chosen at run time, so only these files may use the instructions
ifeq ($(shell uname -m),x86_64)
$(B)/obj/gpu/cpu/avx2%.o: ALL_CFLAGS += $(if $(SAN),-Wno-pass-failed,-O3) -mavx2 -mfma -mf16c
$(B)/obj/gpu/cpu/avx512%.o: ALL_CFLAGS += -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512vnni
endif
$(CLIENT_O) $(SHM_O): ALL_CFLAGS += -fPIC -fvisibility=hidden

$(B)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(ALL_CFLAGS) -c -o $@ $<

$(B)/llmd: $(APP_O) $(GPU_O) $(SHM_O)
	@echo '  LINK $@'
	@$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(JEMALLOC)

# what llmctl links: the library with its inner names
$(B)/obj/client.a: $(CLIENT_O) $(SHM_O)
	@rm -f $@
	@$(AR) rcs $@ $^

# one object, its hidden names made local: a program may call its own functions what it likes
$(B)/libllmclient.a: $(CLIENT_O) $(SHM_O)
	@echo '  AR   $@'
	@rm -f $@
	@$(LD) -r -o $(B)/obj/llmclient.o $^ && $(OBJCOPY) --localize-hidden $(B)/obj/llmclient.o && $(AR) rcs $@ $(B)/obj/llmclient.o

$(B)/libllmclient.so: $(CLIENT_O) $(SHM_O) client/llmclient.map
	@echo '  LINK $@'
	@$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libllmclient.so.$(SO_MAJOR) -Wl,--version-script=client/llmclient.map \
	    -o $@ $(filter %.o,$^) $(CLIENT_LIBS)
	@ln -sf libllmclient.so $(B)/libllmclient.so.$(SO_MAJOR)

# the readers of model files are there for what needs no engine, and what sizes one for `plan`
$(B)/llmctl: $(CTL_O) $(MODEL_O) $(call obj,appliance/sizing.c gpu/cpu/memory.c) $(B)/obj/client.a
	@echo '  LINK $@'
	@$(CC) $(ALL_LDFLAGS) -o $@ $^ $(CLIENT_LIBS) -luring -lxxhash -ljansson -ledit -lncursesw -lm

# files that are served: their bytes, with names of ld's
$(B)/obj/%.html.o: %.html
	@mkdir -p $(@D)
	@$(LD) -r -b binary -z noexecstack -o $@ $<

# the library as every program gets it; path.o names boards
$(B)/llm-gateway: $(GW_O) $(B)/obj/shm/path.o $(B)/libllmclient.a
	@echo '  LINK $@'
	@$(CC) $(ALL_LDFLAGS) -o $@ $^ $(CLIENT_LIBS) -lmicrohttpd -ljansson

# as a program outside the tree is built
$(B)/client/examples/%: client/examples/%.c $(B)/libllmclient.a
	@mkdir -p $(@D) $(B)/obj/client/examples
	@echo '  CC   $@'
	@$(CC) $(ALL_CFLAGS) -Iclient -MF $(B)/obj/$<.d -o $@ $< $(B)/libllmclient.a $(ALL_LDFLAGS) $(CLIENT_LIBS)
$(B)/tests/e2e/test_examples: | $(EXAMPLES)

$(B)/libcore.a: $(CORE_O)
	@rm -f $@
	@ar rcs $@ $^

$(B)/tests/%: $(B)/obj/tests/%.o $(SUPPORT_O) $(B)/libcore.a
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(ENGINE_LIBS) $(CLIENT_LIBS) -ljansson -lcmocka -lz

$(B)/tests/unit/test_metrics $(B)/tests/e2e/test_operations: $(B)/obj/tools/gateway/metrics.o

$(B)/tests/abi/main: $(B)/obj/tests/abi/main.o
	@mkdir -p $(@D)
	@$(CC) $(ALL_LDFLAGS) -o $@ $<

# a fuzzer has libFuzzer's main under `make fuzz`; else one that replays its corpus
FUZZ_MAIN := $(if $(findstring fuzzer,$(SAN)),-fsanitize=fuzzer,$(B)/obj/tests/fuzz/replay.o)
$(B)/tests/fuzz/%: $(B)/obj/tests/fuzz/%.o $(filter %.o,$(FUZZ_MAIN)) $(SUPPORT_O) $(B)/libcore.a
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) $(ALL_LDFLAGS) $(filter -f%,$(FUZZ_MAIN)) -o $@ $^ $(ENGINE_LIBS) $(CLIENT_LIBS) -ljansson -lcmocka -lz

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
.SECONDARY:
