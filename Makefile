# Short names for the usual steps; CMake does the work (see CMakePresets.json).

PREFIX ?= /usr/local
JOBS ?= $(shell scripts/jobs.sh)
SECONDS ?= 60
TARGETS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# The steps depend on each other and each is parallel inside: "make -j" must not start two at once.
.NOTPARALLEL:
.PHONY: help deps build build-cuda check-cuda debug test test-extra test-cases test-kernels fuzz demo format lint install clean

CONFIGURE = cmake --preset $(1) --log-level=WARNING
COMPILE = cmake --build --preset $(1) --parallel $(JOBS)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo "  JOBS=n limits the parallel compilers (now $(JOBS)); PREFIX=dir is where install puts things"

deps: ## install the Debian packages that the build needs, if any is missing
	@scripts/deps.sh build

build: deps ## build/release/fwpkm, optimized
	@$(call CONFIGURE,release)
	@$(call COMPILE,release) --target fwpkm

build-cuda: deps ## build/cuda/fwpkm, for NVIDIA GPUs too (sm_80, sm_90, sm_100); needs CUDA's nvcc
	@scripts/deps.sh cuda
	@$(call CONFIGURE,cuda)
	@$(call COMPILE,cuda) --target fwpkm

check-cuda: deps ## compile all GPU kernels for sm_90; needs no GPU
	@scripts/deps.sh cuda
	@$(call CONFIGURE,cuda-check)
	@$(call COMPILE,cuda-check)

debug: deps ## build/debug/fwpkm, for the debugger
	@$(call CONFIGURE,debug)
	@$(call COMPILE,debug) --target fwpkm

test: build ## build, then run all tests
	@scripts/deps.sh test
	@$(call COMPILE,release)
	@ctest --preset release

test-extra: test-cases ## all tests again, with sanitizers; many cases; some fuzzing; GPU kernels compiled and tested, if nvcc is there
	@scripts/deps.sh sanitize
	@scripts/deps.sh test
	@$(call CONFIGURE,sanitize)
	@$(call COMPILE,sanitize)
	@ctest --preset sanitize
	@scripts/fuzz.sh 10
	@if scripts/deps.sh cuda; then $(MAKE) --no-print-directory check-cuda test-kernels; \
	  else echo "no nvcc: GPU kernels are neither compiled nor tested"; fi

test-cases: build ## the tests that draw cases at random, with 5,000 of them
	@$(call COMPILE,release) --target fwpkm_tests
	@FWPKM_CASES=5000 TMPDIR=$$([[ -w /dev/shm ]] && echo /dev/shm || echo /tmp) build/release/fwpkm_tests --gtest_brief=1 --gtest_filter='SessionProperties.*'

test-kernels: build ## run all GPU kernels on the CPU, against the reference; needs CUDA's headers, but no GPU
	@scripts/deps.sh cuda
	@scripts/deps.sh kernels
	@$(call CONFIGURE,release)
	@$(call COMPILE,release) --target fwpkm_emulated
	@ctest --preset kernels

fuzz: deps ## fuzz the readers of files, SECONDS=n for each of TARGETS (all)
	@scripts/deps.sh sanitize
	@$(call CONFIGURE,sanitize)
	@$(call COMPILE,sanitize) --target fuzzers
	@scripts/fuzz.sh $(SECONDS) $(TARGETS)

demo: build ## build, then show what the program does
	@scripts/demo.sh

format: ## clang-format all C++ and JavaScript files in place
	@scripts/deps.sh format
	@find src tests examples fuzz -name '*.cpp' -o -name '*.js' -o -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format -i

lint: deps ## clang-tidy all C++ files; slow, by hand only
	@scripts/deps.sh lint
	@$(call CONFIGURE,release)
	@run-clang-tidy -quiet -j $(JOBS) -p build/release "^$(CURDIR)/(src|tests)/"

install: build ## program, library, headers and CMake package to PREFIX
	@cmake --install build/release --prefix "$(PREFIX)"

clean: ## remove everything that was built
	@rm -rf build
