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

ifeq ($(origin CC),default)
CC := gcc
endif
OPT     ?= -O2
# What asks for no compiler asks for no libraries either.
NO_BUILD := clean help lint format fuzz
# On a bare machine with a GPU: what needs them is left out there, and was built elsewhere.
ONLY_GPU := check-gpu bench-gpu cuda
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(NO_BUILD),$(MAKECMDGOALS)),all),)
LIB_CFLAGS := $(shell pkg-config --cflags $(LIBS) && echo -DHAVE_LIBS=1)
LIB_LIBS   := $(shell pkg-config --libs $(LIBS))
ifeq ($(filter -DHAVE_LIBS=1,$(LIB_CFLAGS)),)
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(ONLY_GPU),$(MAKECMDGOALS)),all),)
$(error libraries are missing: run scripts/deps.sh)
endif
NO_LIBS := 1
endif
endif

CPPFLAGS += -I. -D_GNU_SOURCE -include base/banned.h \
            $(if $(filter asan tsan fuzz,$(VARIANT)),,-D_FORTIFY_SOURCE=2)
WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion \
           -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wcast-qual -Wcast-align \
           -Wwrite-strings -Wundef -Wvla -Walloca -Wformat=2 -Wimplicit-fallthrough -Wswitch-enum \
           -Wnull-dereference
GCC_WARN := $(if $(findstring clang,$(CC)),,-Wlogical-op -Wduplicated-cond -Wduplicated-branches)
CFLAGS  ?= $(OPT) -g
CFLAGS  += -std=gnu11 -ffp-contract=off -fno-omit-frame-pointer -fno-common \
           -fstack-protector-strong -pthread $(WARN) $(GCC_WARN) $(if $(DEV),-Werror)
CFLAGS  += $(LIB_CFLAGS)
LDLIBS  += $(LIB_LIBS) -lm -ldl

SAN_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined
SAN_tsan := -fsanitize=thread
SAN_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
SAN_analyze := -fanalyzer
CFLAGS  += $(SAN_$(VARIANT))
LDFLAGS += $(SAN_$(VARIANT)) -pthread

ISA__avx2       := -mavx2 -mfma -mf16c
ISA__avx512     := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
ISA__avx512bf16 := $(ISA__avx512) -mavx512bf16 -mavx512vnni
isa = $(foreach s,_avx2 _avx512 _avx512bf16,$(if $(filter %$(s),$(1)),$(ISA_$(s))))

SRC       := $(filter-out %/.c,$(foreach d,$(PRODUCT),$(wildcard $(d)/*.c)))
MAIN_SRC  := $(foreach f,$(SRC),$(if $(filter main_%,$(notdir $(f))),$(f)))
LIB_OBJ   := $(patsubst %.c,$(B)/obj/%.o,$(filter-out $(MAIN_SRC),$(SRC)))
BINS      := $(foreach f,$(MAIN_SRC),$(B)/$(patsubst main_%.c,%,$(notdir $(f))))
LIB       := $(B)/libagentd.a

# Tests are linked with the allocator wrapped, so that they can fail the n-th allocation of our own
# code (tests/support/alloc_fault.c, base/fault.h).
WRAPPED     := malloc calloc realloc aligned_alloc posix_memalign strdup strndup
# So are the calls that change files, so that a test can cut the power (tests/support/page_cache.c).
WRAPPED_FILES := open __open_2 mkostemp close write pwrite ftruncate fallocate fsync fdatasync \
                 rename unlink mkdir
TEST_LIBS    = $(LDLIBS) -lcmocka $(foreach f,$(WRAPPED) $(WRAPPED_FILES),-Wl,--wrap=$(f))
SUPPORT_OBJ := $(patsubst %.c,$(B)/obj/%.o,$(wildcard tests/support/*.c) tests/gpu/mirror.c)
TEST_SRC    := $(wildcard tests/*/test_*.c)
TESTS       := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_SRC))
FUZZ_SRC    := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_REPLAY := $(patsubst tests/fuzz/%.c,$(B)/tests/fuzz/%,$(FUZZ_SRC))
# Small programs that tests and scripts start: tests/support/tools/NAME.c is build/tests/NAME.
TOOL_SRC    := $(wildcard tests/support/tools/*.c)
TEST_TOOLS  := $(patsubst tests/support/tools/%.c,$(B)/tests/%,$(TOOL_SRC))
# The CUDA kernels compiled for the host, as the library that agentd loads.
EMULATED_LIB := $(B)/tests/libagentd-cuda-emulated.so
# What bench_gpu takes for cuBLAS in its test.
CUBLAS_STANDIN := $(B)/tests/standin/libcublas.so
EXAMPLE_SRC := $(wildcard examples/*.c)
EXAMPLES    := $(patsubst examples/%.c,$(B)/examples/%,$(EXAMPLE_SRC))

Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))
define link
$(call say,LD,$@)
$(Q)mkdir -p $(@D)
$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(1)
endef

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: gpu-programs gpu-library check-gpu bench-gpu all bench check check-slow asan tsan fuzz cuda lint format analyze install clean help tests

all: $(BINS) $(EXAMPLES) ## the binaries, CPU only

tests: all $(TESTS) $(TEST_TOOLS) $(FUZZ_REPLAY) $(EMULATED_LIB) $(CUBLAS_STANDIN) $(B)/gpu/bench_gpu ## and everything that check runs

$(LIB): $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/obj/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(call isa,$(basename $<)) -MMD -MP -c -o $@ $<

# The vector code of the kernels is gcc's, and no parser of outside bytes: fuzz targets link it as it is.
ifeq ($(VARIANT),fuzz)
$(B)/obj/kernels/%.o: override CC := gcc
$(B)/obj/kernels/%.o: SAN_fuzz :=
endif

define main_rule
$(B)/$(patsubst main_%.c,%,$(notdir $(1))): $(B)/obj/$(1:.c=.o) $(LIB)
	$$(call link,$$(LDLIBS))
endef
$(foreach f,$(MAIN_SRC),$(eval $(call main_rule,$(f))))

$(B)/tests/%: $(B)/obj/tests/%.o $(SUPPORT_OBJ) $(LIB)
	$(call link,$(TEST_LIBS))

# The CUDA kernels as host C++, for the tests of kernels (tests/support/cuda_emulation.h).
EMULATED_OBJ := $(patsubst %.cu,$(B)/obj/emulated/%.o,$(wildcard kernels/*.cu)) \
                $(patsubst %.cc,$(B)/obj/emulated/%.o,$(wildcard tests/support/*.cc))
CXXFLAGS ?= $(OPT) -g
CXXFLAGS += -std=gnu++17 -fPIC -fno-strict-aliasing -ffp-contract=off -fno-omit-frame-pointer -Wall -Wextra -Wshadow \
            $(if $(DEV),-Werror) $(SAN_$(VARIANT))
define emulated
$(call say,CXX,$<)
$(Q)mkdir -p $(@D)
$(Q)$(CXX) -I. -D_GNU_SOURCE $(CXXFLAGS) -include tests/support/cuda_emulation.h -MMD -MP -x c++ -c -o $@ $<
endef
$(B)/obj/emulated/%.o: %.cu Makefile
	$(emulated)

$(B)/obj/emulated/%.o: %.cc Makefile
	$(emulated)

$(filter $(B)/tests/kernels/%,$(TESTS)): $(B)/tests/%: $(B)/obj/tests/%.o $(EMULATED_OBJ) $(SUPPORT_OBJ) $(LIB)
	$(call link,$(TEST_LIBS) -lstdc++)

# And as the library that agentd loads, for the tests of everything above.
$(EMULATED_LIB): $(EMULATED_OBJ) $(patsubst %.c,$(B)/obj/cuda/%.o,base/err.c kernels/types.c)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(LDFLAGS) -shared -o $@ $^

$(CUBLAS_STANDIN): $(B)/obj/cuda/tests/gpu/standin_cublas.o
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $^

$(TEST_TOOLS): $(B)/tests/%: $(B)/obj/tests/support/tools/%.o $(SUPPORT_OBJ) $(LIB)
	$(call link,$(TEST_LIBS))

$(EXAMPLES): $(B)/examples/%: $(B)/obj/examples/%.o $(LIB)
	$(call link,$(LDLIBS))

# Without libFuzzer a fuzz target replays its corpus: tests/fuzz/replay_main.c has the main().
ifeq ($(VARIANT),fuzz)
FUZZ_MAIN_LIBS := -fsanitize=fuzzer
else
FUZZ_MAIN_OBJ  := $(B)/obj/tests/fuzz/replay_main.o
endif
$(FUZZ_REPLAY): $(B)/tests/fuzz/%: $(B)/obj/tests/fuzz/%.o $(FUZZ_MAIN_OBJ) $(SUPPORT_OBJ) $(LIB)
	$(call link,$(FUZZ_MAIN_LIBS) $(TEST_LIBS))

check: tests ## build, then run every test and every fuzz corpus (no GPU needed)
	$(Q)tests/run $(if $(ONLY),--only '$(ONLY)') $(B)

check-slow: tests ## the long tests: thousands of seeds and kills, comparisons with Python packages
	$(Q)tests/run --slow $(B)
	$(Q)tests/reference/run $(B)

bench: tests ## speed beside the machine's ceilings: make bench G="ceilings parts"
	$(Q)scripts/bench.sh $(G)

asan: ## the same tests under AddressSanitizer and UBSan (ONLY=REGEX: some of them)
	$(Q)$(MAKE) --no-print-directory VARIANT=asan OPT=-O1 check

tsan: ## the threaded tests under ThreadSanitizer
	$(Q)$(MAKE) --no-print-directory VARIANT=tsan OPT=-O1 tests
	$(Q)tests/run --only '/base/|agentd/test_(cli|client|kv|parts|rpc|turns)$$|engine/test_t(iers|oken_cache)$$' build/tsan

fuzz: ## fuzz one parser with libFuzzer: make fuzz T=tokenizer S=60
	$(Q)$(MAKE) --no-print-directory VARIANT=fuzz CC=clang-14 OPT=-O1 build/fuzz/tests/fuzz/fuzz_$(T)
	$(Q)scripts/fuzz.sh $(T) $(or $(S),60)

# The CUDA backend, a library of its own that agentd loads when asked (kernels/cuda.h).
NVCC       ?= nvcc
CUDA_ARCHS ?= 80 90a 100 120
CUDA_OBJ   := $(patsubst %.cu,$(B)/obj/cuda/%.o,$(wildcard kernels/*.cu)) \
              $(patsubst %.c,$(B)/obj/cuda/%.o,base/err.c kernels/types.c)
$(B)/obj/cuda/%.o: %.cu Makefile
	@command -v $(NVCC) >/dev/null || { echo "no $(NVCC) here: the CUDA backend is off, all else builds without it"; exit 1; }
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O3 --fmad=false -lineinfo -I. -MMD -MP -Xcompiler -fPIC,-Wall,-Wextra \
	    -Werror all-warnings $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	    -Xptxas -v -c -o $@ $< >$(@:.o=.log) 2>&1 || { cat $(@:.o=.log); exit 1; }

$(B)/obj/cuda/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -MMD -MP -c -o $@ $<

$(B)/libagentd-cuda.so: $(CUDA_OBJ)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) -shared -cudart static -o $@ $^

cuda: $(B)/libagentd-cuda.so ## the CUDA backend (needs nvcc 13, no GPU)

# Programs for a machine that has a GPU and little else: they bring their libraries along, so that a
# copy of build/gpu and build/libagentd-cuda.so is enough there. Without libraries to build with, only
# the bench and the library of kernels are built.
GPU       := $(B)/gpu
GPU_TESTS := kernels/test_rows kernels/test_runs kernels/test_linear kernels/test_attention kernels/test_index \
             kernels/test_moe kernels/test_sample engine/test_cuda_engine engine/test_golden_f_segments \
             engine/test_golden_c_replay engine/test_golden_drafts engine/test_golden_g_resume \
             engine/test_resume engine/test_tiers_kv engine/test_ahead engine/test_batching engine/test_graphs
GPU_ARCHS ?= $(CUDA_ARCHS)

$(GPU)/libsupport.a: $(SUPPORT_OBJ)
	$(Q)mkdir -p $(@D) && rm -f $@ && ar rcs $@ $^

$(GPU)/libemulated.a: $(EMULATED_OBJ)
	$(Q)mkdir -p $(@D) && rm -f $@ && ar rcs $@ $^

$(GPU_TESTS:%=$(GPU)/%): $(GPU)/%: $(B)/obj/tests/%.o $(GPU)/libsupport.a $(GPU)/libemulated.a $(LIB)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D) $(GPU)/lib
	$(Q)$(CC) $(LDFLAGS) -s -Wl,--as-needed -Wl,-rpath,'$$ORIGIN/../lib' -o $@ \
	    $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(TEST_LIBS) -lstdc++
	$(Q)ldd $@ | awk '$$3 ~ /^\// && $$1 !~ /^lib(c|m|dl|pthread|rt)\.so/ {print $$3}' | \
	    xargs -r cp -Lun -t $(GPU)/lib

# Kernels, errors, clock and threads: no library but the C library's.
GPU_BENCH_SRC := tests/gpu/main_bench.c $(filter-out kernels/main_%,$(wildcard kernels/*.c)) \
                 $(wildcard tests/gpu/bench_*.c) base/err.c base/pool.c base/clock.c
$(B)/obj/gpu/%.o: %.c Makefile
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(filter-out $(LIB_CFLAGS),$(CFLAGS)) $(call isa,$(basename $<)) -MMD -MP -c -o $@ $<

$(GPU)/bench_gpu: $(GPU_BENCH_SRC:%.c=$(B)/obj/gpu/%.o)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -pthread -lm -ldl

gpu-programs: $(GPU)/bench_gpu $(if $(NO_LIBS),,$(GPU_TESTS:%=$(GPU)/%))

# What a copy from another machine brought along is used as it is.
gpu-library:
	$(Q)[ -f $(B)/libagentd-cuda.so ] && [ -n "$(NO_LIBS)" ] || \
	    $(MAKE) --no-print-directory $(B)/libagentd-cuda.so CUDA_ARCHS="$(GPU_ARCHS)"

check-gpu: gpu-library gpu-programs ## every op and whole models on this machine's GPU (exit 3: there is none)
	$(Q)GPU_TESTS="$(GPU_TESTS)" tests/gpu/run $(B); rc=$$?; \
	    [ $$rc -ne 3 ] || echo "check-gpu: nothing was tested, there is no GPU here"; exit $$rc

bench-gpu: gpu-library $(GPU)/bench_gpu ## speed of this machine's GPU beside its own ceilings (exit 3: there is none)
	$(Q)$(GPU)/bench_gpu --library $(B)/libagentd-cuda.so $(G)

lint: ## folder rules, banned calls, long functions, format
	$(Q)scripts/lint.sh

format: ## clang-format every source file
	$(Q)clang-format-14 -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc')

analyze: ## gcc's static analyzer over the product code
	$(Q)$(MAKE) --no-print-directory VARIANT=analyze build/analyze/libagentd.a

PREFIX ?= /usr/local
install: all ## binaries and man pages below DESTDIR and PREFIX (/usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin
	$(if $(BINS),install $(BINS) $(DESTDIR)$(PREFIX)/bin)
	for section in 1 5 7 8; do for page in docs/*.$$section; do [ ! -f "$$page" ] || \
	    install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man$$section "$$page"; done; done

clean: ## remove build/
	$(Q)rm -rf build

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
