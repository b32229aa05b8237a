# agentd: `make help` lists the targets. Everything is built out of tree, in build/ (release) and
# build/<variant>/ (asan, tsan).
#
# A file folder/main_NAME.c becomes the binary build/NAME; tests/*/test_*.c become test programs;
# tests/fuzz/fuzz_*.c become fuzz targets. Every other .c of a product folder goes into one static
# library. The ending of a kernel file names the instruction set it is compiled for.

VARIANT ?=
B := build$(if $(VARIANT),/$(VARIANT))

PRODUCT := base kernels engine sessions tools agentd evals
LIBS    := sqlite3 libcurl jansson liburing libsodium libuv libutf8proc libzstd

CC      ?= gcc
OPT     ?= -O2
CPPFLAGS += -I. -D_GNU_SOURCE -include base/banned.h $(if $(filter asan tsan fuzz,$(VARIANT)),,-D_FORTIFY_SOURCE=2)
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion \
           -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wcast-qual -Wcast-align \
           -Wwrite-strings -Wundef -Wvla -Walloca -Wformat=2 -Wimplicit-fallthrough -Wswitch-enum \
           -Wnull-dereference
GCC_WARN := $(if $(findstring clang,$(CC)),,-Wlogical-op -Wduplicated-cond -Wduplicated-branches)
CFLAGS  ?= $(OPT) -g
CFLAGS  += -std=gnu11 -ffp-contract=off -fno-omit-frame-pointer -fno-common \
           -fstack-protector-strong -pthread $(WARN) $(GCC_WARN) $(if $(DEV),-Werror)
LDLIBS  += $(shell pkg-config --libs $(LIBS)) -lm -ldl
CFLAGS  += $(shell pkg-config --cflags $(LIBS))

SAN_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SAN_tsan := -fsanitize=thread
SAN_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
SAN      := $(SAN_$(VARIANT))
CFLAGS  += $(SAN)
LDFLAGS += $(SAN) -pthread

ISA__avx2       := -mavx2 -mfma -mf16c
ISA__avx512     := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
ISA__avx512bf16 := $(ISA__avx512) -mavx512bf16
isa = $(foreach s,_avx2 _avx512 _avx512bf16,$(if $(filter %$(s),$(1)),$(ISA_$(s))))

SRC       := $(filter-out %/.c,$(foreach d,$(PRODUCT),$(wildcard $(d)/*.c)))
MAIN_SRC  := $(foreach f,$(SRC),$(if $(filter main_%,$(notdir $(f))),$(f)))
LIB_OBJ   := $(patsubst %.c,$(B)/obj/%.o,$(filter-out $(MAIN_SRC),$(SRC)))
BINS      := $(foreach f,$(MAIN_SRC),$(B)/$(patsubst main_%.c,%,$(notdir $(f))))
LIB       := $(B)/libagentd.a

# Tests are linked with the allocator wrapped, so that they can fail the n-th allocation of our own
# code (tests/support/alloc_fault.c, base/fault.h).
WRAPPED     := malloc calloc realloc aligned_alloc posix_memalign strdup strndup
TEST_LIBS    = $(LDLIBS) -lcmocka $(WRAPPED:%=-Wl,--wrap=%)
SUPPORT_OBJ := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/support/*.c))
TEST_SRC    := $(wildcard tests/*/test_*.c)
TESTS       := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_SRC))
FUZZ_SRC    := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_REPLAY := $(patsubst tests/fuzz/%.c,$(B)/tests/fuzz/%,$(FUZZ_SRC))
# Small programs that tests and scripts start: tests/support/tool_NAME.c becomes build/tests/NAME.
TOOL_SRC    := $(wildcard tests/support/tools/*.c)
TEST_TOOLS  := $(patsubst tests/support/tools/%.c,$(B)/tests/%,$(TOOL_SRC))
EXAMPLE_SRC := $(wildcard examples/*.c)
EXAMPLES    := $(patsubst examples/%.c,$(B)/examples/%,$(EXAMPLE_SRC))

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

.DEFAULT_GOAL := all
.SECONDARY:
.PHONY: all check check-slow asan tsan fuzz lint format clean help tests

all: $(BINS) $(EXAMPLES)

tests: all $(TESTS) $(TEST_TOOLS) $(FUZZ_REPLAY)

$(LIB): $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/obj/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(call isa,$(basename $<)) -MMD -MP -c -o $@ $<

define main_rule
$(B)/$(patsubst main_%.c,%,$(notdir $(1))): $(B)/obj/$(1:.c=.o) $(LIB)
	$$(call say,LD,$$@)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS)
endef
$(foreach f,$(MAIN_SRC),$(eval $(call main_rule,$(f))))

$(B)/tests/%: $(B)/obj/tests/%.o $(SUPPORT_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LIBS)

$(TEST_TOOLS): $(B)/tests/%: $(B)/obj/tests/support/tools/%.o $(SUPPORT_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LIBS)

$(EXAMPLES): $(B)/examples/%: $(B)/obj/examples/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Without libFuzzer a fuzz target replays its corpus: tests/support/fuzz_replay.c has the main().
ifneq ($(VARIANT),fuzz)
$(FUZZ_REPLAY): $(B)/tests/fuzz/%: $(B)/obj/tests/fuzz/%.o $(B)/obj/tests/fuzz/replay_main.o $(SUPPORT_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LIBS)
else
$(FUZZ_REPLAY): $(B)/tests/fuzz/%: $(B)/obj/tests/fuzz/%.o $(SUPPORT_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(TEST_LIBS)
endif

check: tests ## build, then run every test and every fuzz corpus (no GPU needed)
	$(Q)tests/run $(B)

check-slow: tests ## the long tests: thousands of seeds and kills
	$(Q)tests/run --slow $(B)

asan: ## the same tests under AddressSanitizer and UBSan
	$(Q)$(MAKE) --no-print-directory VARIANT=asan OPT=-O1 check

tsan: ## the threaded tests under ThreadSanitizer
	$(Q)$(MAKE) --no-print-directory VARIANT=tsan OPT=-O1 tests
	$(Q)tests/run --only 'base|agentd' build/tsan

fuzz: ## fuzz one parser with libFuzzer: make fuzz T=tokenizer S=60
	$(Q)$(MAKE) --no-print-directory VARIANT=fuzz CC=clang-14 OPT=-O1 build/fuzz/tests/fuzz/fuzz_$(T)
	$(Q)scripts/fuzz.sh $(T) $(or $(S),60)

lint: ## folder rules, banned calls, long functions, format
	$(Q)scripts/lint.sh

format: ## clang-format every source file
	$(Q)clang-format-14 -i $$(git ls-files '*.c' '*.h' '*.cu')

clean: ## remove build/
	$(Q)rm -rf build

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
