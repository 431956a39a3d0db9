# Shardplan's front door for people: `make demo` shows the tool, `make check` runs every test.
# Both install what is missing first. `make help` lists the targets.

JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=
# The two builds compile the same files with the same flags: let ccache share the objects.
export CCACHE_NOHASHDIR = 1

.PHONY: help setup setup-core configure configure-core program build core demo check check-core check-torch style \
        bench fuzz oracle models op_db onnx_cases format tidy clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^## //p' Makefile

## make demo        install, build, then plan, train and verify GPT-2 on four local processes
demo: program
	@examples/demo.sh

## make check       format, layers, all tests (without torch, with torch, Python), clang-tidy
check: style check-core check-torch tidy

check-torch: build
	@echo "tests     with torch and Python"
	@ctest --test-dir build -LE core -j $(JOBS) --output-on-failure --no-tests=error

## make check-core  build and test everything that needs no torch
check-core: core
	@echo "tests     without torch"
	@ctest --test-dir build-core -j $(JOBS) --output-on-failure --no-tests=error

## make style       format and layers only
style: setup-core
	@tools/format.sh check
	@python3 tools/check_layers.py

## make setup       Debian packages and .venv
setup:
	@tools/setup.sh

setup-core:
	@tools/setup.sh core

configure: setup
	@echo "configure build/ (with torch)"
	@mkdir -p build && cmake -S . -B build -G Ninja -DSHARDPLAN_WITH_TORCH=ON $(CMAKE_FLAGS) \
	  > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }

configure-core: setup-core
	@echo "configure build-core/ (without torch)"
	@mkdir -p build-core && cmake -S . -B build-core -G Ninja -DSHARDPLAN_WITH_TORCH=OFF $(CMAKE_FLAGS) \
	  > build-core/configure.log 2>&1 || { cat build-core/configure.log; exit 1; }

## make build       the program with its runtime: build/shardplan
build: configure
	@echo "build     build/"
	@cmake --build build -j $(JOBS)

# The program and the Python extension without the tests.
program: configure
	@echo "build     build/shardplan and the Python package"
	@cmake --build build -j $(JOBS) --target shardplan_cli shardplan_python

## make core        the program without torch: build-core/shardplan
core: configure-core
	@echo "build     build-core/"
	@cmake --build build-core -j $(JOBS)

## make bench       benchmarks of benchmarks/, as text
bench: build
	@for program in build/benchmarks/*_bench; do "$$program" || exit 1; done
	@for script in benchmarks/*_bench.py; do \
	  [ ! -e "$$script" ] || .venv/bin/python "$$script" || exit 1; done

## make fuzz        damaged files of every kind, many (SHARDPLAN_FUZZ_RUNS=2000, SHARDPLAN_FUZZ_SEED=0)
fuzz: core
	@SHARDPLAN_FUZZ_RUNS=$${SHARDPLAN_FUZZ_RUNS:-2000} \
	  ctest --test-dir build-core -L fuzz --output-on-failure --timeout 100000

## make models      every model of tests/models against PyTorch, then on four ranks against one (long)
models: build
	@PYTHONPATH=shardplan/python .venv/bin/python -W ignore tests/models/truth_models.py
	@PYTHONPATH=shardplan/python .venv/bin/python -W ignore tests/models/run_models.py \
	  --planners map,map@tight,dp,zero1,zero2,zero3,megatron,megatron_dp,megatron_zero1,megatron_zero3,expert_parallel,spatial

## make op_db       every sample of PyTorch's operator database, every op in every strategy (an hour)
op_db: build
	@STEP_EVAL=build/rooms/runtime/step_eval .venv/bin/python -W ignore tests/runtime/op_db_test.py --refusals

## make onnx_cases  the cases of onnx.backend.test, every op in every strategy over 4 devices (minutes)
onnx_cases: build
	@ONNX_EVAL=build/rooms/runtime/onnx_eval .venv/bin/python -W ignore tests/runtime/onnx_backend_test.py \
	  --kind node --kind pytorch-operator --kind pytorch-converted --kind simple --meshes 4,2x2
	@ONNX_EVAL=build/rooms/runtime/onnx_eval .venv/bin/python -W ignore tests/runtime/onnx_backend_test.py \
	  --kind light --meshes 4

## make oracle      thousands of random problems against HiGHS (SHARDPLAN_ORACLE_CASES=3000, _SEED=0, _SOLVERS)
oracle: program
	@SHARDPLAN=build/shardplan SHARDPLAN_ORACLE_CASES=$${SHARDPLAN_ORACLE_CASES:-3000} \
	  .venv/bin/python tests/solvers/oracle_test.py

## make format      clang-format all C++ sources
format: setup-core
	@tools/format.sh

## make tidy        clang-tidy all C++ sources
tidy: configure configure-core
	@python3 tools/tidy.py -j $(JOBS)

## make clean       remove build folders (.venv stays)
clean:
	rm -rf build build-core
