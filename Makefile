# The commands of this repository. `make run` and `make test` do all their set-up on a fresh Debian 12; running them again is fast.
# Variables: JOBS (default: all cores), CONFIGURE (more -D options for CMake), BASE (git revision that `make tidy` compares with),
# FUZZ_SECONDS (per fuzz target), TEST_ARGS (for eitri_tests, e.g. TEST_ARGS=--gtest_filter=gemm/*).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

JOBS ?= $(shell nproc)
CMAKE ?= cmake
CONFIGURE ?=
BASE ?= HEAD
FUZZ_SECONDS ?= 30
TEST_ARGS ?=
# Debian's python3 sees Debian's pytest and numpy, whatever else is first on PATH.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
VENV := build/venv-frameworks
VENV_NVRTC := build/venv-nvrtc
RESULTS := build/results

# What `make run` runs: a Hugging Face folder. The default one is written on the spot, with random weights.
CHECKPOINT ?= build/checkpoints/qwen3-moe
LAYER ?= 0
TOKENS ?= 16

.PHONY: run test test-compile build bench gpu-compilers test-frameworks wheel test-wheel check format format-check tidy asan ubsan sanitize tsan fuzz fuzz-replay docs install clean help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run: build $(filter build/checkpoints/%,$(CHECKPOINT)/config.json)  ## build, run one MoE layer from a checkpoint of Qwen3-MoE's form and compare it with the reference
	build/bin/eitri moe run --checkpoint $(CHECKPOINT) --layer $(LAYER) --tokens $(TOKENS)

build/checkpoints/qwen3-moe/config.json: tools/random_checkpoint.py
	@$(PYTHON) tools/random_checkpoint.py $(@D)

build: packages-build  ## the command build/bin/eitri and the library build/lib/libeitri.so
	@$(call configure,release)
	@$(CMAKE) --build build -j $(JOBS) --target eitri $$(test -n "$$(ls tools/cli/*.cpp 2>/dev/null)" && echo eitri_cli)

test: packages-build packages-test  ## all light tests: no GPU, no torch, minutes
	@$(call configure,release)
	@$(CMAKE) --build build -j $(JOBS)
	@$(MAKE) -s --no-print-directory gpu-compilers || echo "make test: not all GPU compilers are here; tests that need a missing one are skipped"
	@$(call run_tests,build,)
	@if ls tests/cli/test_*.py >/dev/null 2>&1; then $(PYTHON) -m pytest -q -p no:cacheprovider --junitxml=$(RESULTS)/cli.xml tests/cli; fi
	@if [ -f build/python/eitri/lib/_native.abi3.so ]; then $(PYTHON) -m pytest -q -p no:cacheprovider --junitxml=$(RESULTS)/python.xml tests/python; \
	else echo "make test: no Python.h when this was configured; the Python package is not built or tested"; fi

# The suites of tests/compile/; their names end in Compile. Here a skipped test is a failure.
test-compile: packages-build packages-test gpu-compilers  ## compiles the GPU kernels for sm_90a, gfx942 and gfx950 and looks at the binaries
	@$(call configure,release)
	@$(CMAKE) --build build -j $(JOBS) --target eitri_tests
	@$(call run_tests,build,--gtest_filter='*Compile.*',compile)
	@$(PYTHON) .ci/tally.py --no-skips compile=$(RESULTS)/compile.json

# 65 MB from Debian and 58 MB from PyPI, about 20 s. Our finders look into VIRTUAL_ENV.
gpu-compilers: packages-compile $(VENV_NVRTC)/ready  ## clang-22 from Debian and NVRTC from PyPI, into build/: they compile GPU kernels without a GPU

$(VENV_NVRTC)/ready: tests/compile/requirements.txt
	@mkdir -p build
	@rm -rf $(VENV_NVRTC); $(PYTHON) -m venv $(VENV_NVRTC)
	@$(VENV_NVRTC)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

bench: packages-build packages-test  ## micro-benchmarks; the operators' own are in `build/bin/eitri <op> bench`
	@$(call configure,release)
	@$(CMAKE) --build build -j $(JOBS)
	@if [ -x build/bin/eitri_bench ]; then build/bin/eitri_bench; else echo "bench/ has no .cpp file"; fi

test-frameworks: build packages-frameworks $(VENV)/ready  ## agreement with PyTorch and Hugging Face transformers (installs them into build/)
	@mkdir -p $(RESULTS)
	@$(CMAKE) --build build -j $(JOBS) --target eitri_python
	$(VENV)/bin/python -m pytest -q -p no:cacheprovider --junitxml=$(RESULTS)/frameworks.xml tests/frameworks

# As deep as build/ and with the same compiler name, so that a compiler cache has most of it already.
wheel: packages-build packages-frameworks $(VENV)/ready  ## the Python wheel, into build/wheels
	@rm -rf build/wheels
	CXX=c++ $(VENV)/bin/pip wheel -q --disable-pip-version-check --no-deps -w build/wheels \
	  $(if $(findstring WERROR=ON,$(CONFIGURE)),--config-settings=cmake.define.EITRI_WERROR=ON) .

test-wheel: wheel  ## the tests of tests/python on the installed wheel
	@rm -rf build/wheel-site; $(VENV)/bin/pip install -q --disable-pip-version-check --no-deps --target build/wheel-site build/wheels/eitri-*.whl
	@mkdir -p $(RESULTS)
	EITRI_PYTHON=build/wheel-site $(VENV)/bin/python -m pytest -q -p no:cacheprovider --junitxml=$(RESULTS)/wheel.xml tests/python

$(VENV)/ready: tests/frameworks/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -r tests/frameworks/requirements.txt
	@touch $@

check: packages-lint  ## every check of tools/checks
	@mkdir -p $(RESULTS)
	@$(PYTHON) tools/checks/run.py --json $(RESULTS)/checks.json

sources = git ls-files '*.cpp' '*.h' '*.hpp' '*.cuh'
format: packages-lint  ## clang-format over all sources
	@$(sources) | xargs -r clang-format -i

format-check: packages-lint
	@$(sources) | xargs -r clang-format --dry-run --Werror

tidy: packages-lint build  ## clang-tidy on the lines changed since BASE
	@git diff -U0 --no-color $(BASE) -- '*.cpp' '*.h' '*.hpp' | clang-tidy-diff-16.py -clang-tidy-binary clang-tidy-16 -p1 -path build -quiet -j $(JOBS)

# What a GPU compiler makes is the same under sanitizers; and the references run there as what every other row is compared with.
without_compile = $(if $(TEST_ARGS),,--gtest_filter=-*Compile.*:*.reference/*)

asan: packages-build packages-test  ## the tests under AddressSanitizer
	@$(call sanitized,asan,$(without_compile))
ubsan: packages-build packages-test  ## the tests under UndefinedBehaviorSanitizer
	@$(call sanitized,ubsan,$(without_compile))
sanitize: packages-build packages-test  ## the tests under both of them, in one build
	@$(call sanitized,ci,$(without_compile))

# Several threads at work are what this sanitizer is for; by default only the tests that start some, named *Thread* or *Concurren*.
tsan: packages-build packages-test packages-clang  ## the tests named *Thread* or *Concurren* under ThreadSanitizer
	@$(call sanitized,tsan,$(if $(TEST_ARGS),,--gtest_filter=*Thread*:*Concurren*))

fuzz: packages-build packages-test packages-clang  ## each fuzz target for FUZZ_SECONDS
	@$(call configure,fuzz)
	@$(CMAKE) --build build/fuzz -j $(JOBS) --target eitri_fuzz
	@for source in $(wildcard tests/fuzz/*_fuzz.cpp); do name=$$(basename $$source .cpp); \
	  mkdir -p build/fuzz/corpus/$$name tests/fuzz/corpus/$${name%_fuzz}; \
	  build/fuzz/bin/$$name -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/ build/fuzz/corpus/$$name tests/fuzz/corpus/$${name%_fuzz}; done

# Needs `make sanitize` before: the replay runs under the sanitizers.
fuzz-replay:  ## the stored inputs and fixed mutations of them, under the sanitizers
	@$(call configure,ci)
	@$(CMAKE) --build build/ci -j $(JOBS) --target eitri_fuzz
	@mkdir -p $(RESULTS); rm -f $(RESULTS)/fuzz.txt
	@for source in $(wildcard tests/fuzz/*_fuzz.cpp); do name=$$(basename $$source .cpp); corpus=tests/fuzz/corpus/$${name%_fuzz}; \
	  echo "$$name: $$(build/ci/bin/$${name}_replay $$(test -d $$corpus && echo $$corpus) --mutations 20000)" | tee -a $(RESULTS)/fuzz.txt; done

docs: build  ## rewrites docs/generated from the kernel and settings tables, docs/generated/performance.md from bench/results
	@mkdir -p docs/generated
	build/bin/eitri ops --markdown > docs/generated/ops.md
	build/bin/eitri doctor --settings-markdown > docs/generated/settings.md
	$(PYTHON) tools/performance_page.py

install: build  ## into PREFIX (default: CMake's)
	$(CMAKE) --install build $(if $(PREFIX),--prefix $(PREFIX))

clean:  ## removes build/
	rm -rf build build-wheel

packages-%:
	@tools/install_packages.sh $*

# CMake is run again only when there is no build yet or options are given; new files are noticed by the build itself.
define configure
if [ ! -f $(if $(filter release,$(1)),build,build/$(1))/build.ninja ] || [ -n "$(CONFIGURE)" ]; then \
  mkdir -p build; $(CMAKE) --preset $(1) $(CONFIGURE) >build/configure-$(1).log 2>&1 || { cat build/configure-$(1).log; exit 1; }; fi
endef

# Processes that share the tests: most of them use one core. With several the result files are NAME-1.json, NAME-2.json, ... Threads that
# wait for work sleep: where they spin, in the way of the others, tests under sanitizers take twice as long.
SHARDS ?= 1

# Build folder, arguments, name of the result file.
define run_tests
mkdir -p $(RESULTS); if [ -x $(1)/bin/eitri_tests ]; then \
  if [ -f $(VENV_NVRTC)/ready ]; then export VIRTUAL_ENV=$(CURDIR)/$(VENV_NVRTC); fi; \
  export OMP_WAIT_POLICY=passive; name=$(or $(3),$(subst build/,,$(filter build/%,$(1))),host); failed=0; pids=; \
  for i in $$(seq $(SHARDS)); do \
    GTEST_TOTAL_SHARDS=$(SHARDS) GTEST_SHARD_INDEX=$$((i - 1)) $(1)/bin/eitri_tests --gtest_brief=1 \
      --gtest_output=json:$(RESULTS)/$$name$(if $(filter 1,$(SHARDS)),,-$$i).json $(2) $(if $(3),,$(TEST_ARGS)) & pids="$$pids $$!"; done; \
  for pid in $$pids; do wait $$pid || { echo "$(1)/bin/eitri_tests: exit status $$?"; failed=1; }; done; [ $$failed = 0 ]; \
else echo "tests/ has no *_test.cpp file"; fi
endef

define sanitized
$(call configure,$(1)); $(CMAKE) --build build/$(1) -j $(JOBS) --target eitri_tests; \
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
  TSAN_OPTIONS="ignore_noninstrumented_modules=1 suppressions=$(CURDIR)/tests/tsan.supp halt_on_error=1 \
  external_symbolizer_path=$(firstword $(wildcard /usr/bin/llvm-symbolizer-16))"; \
$(call run_tests,build/$(1),$(2))
endef
