# make train          make .venv, install, train the default robot; again: resume it or show what it left
# make test           everything CI runs; REQUIRE=all: a missing tool fails instead of being left out
# make test-python    base install under PY=python3.10 (or 3.12), the tests without torch and simulators
# make soak           the long forms, resumable; writes the committed results
# make system         (root) what the above need from the system
# make clean          remove environments and build output; runs/ stays

SHELL := /bin/sh
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help train test checks wheel tests test-python also-pythons soak system clean

PYTHONS := python3.11 python3.10 python3.12 python3.13
ALSO := python3.10 python3.12
PACKAGES := edge_sac robots sim firmware_bridge
SOURCES := $(shell find $(PACKAGES) -type f -not -name '*.pyc')
INSTALLER := pyproject.toml constraints.txt tools/install.py tools/make-venv
CHECKED := .venv-test/bin
# From another folder and without PYTHONPATH, so that nothing but the installed wheel can be imported.
PYTEST := -c $(CURDIR)/pyproject.toml --rootdir=$(CURDIR) $(CURDIR)/tests
ELSEWHERE := cd "$$(mktemp -d)" && unset PYTHONPATH && EDGE_SAC_TESTED=wheel

help:
	@sed -n 's/^# make/make/p' Makefile

train: .venv/.installed
	.venv/bin/edge-sac train --resume-or-show

.venv/.installed: $(INSTALLER) $(SOURCES)
	test -x .venv/bin/python || tools/make-venv .venv $(PYTHONS)
	rm -rf build
	.venv/bin/python tools/install.py . train cpu sim
	touch $@

test: checks also-pythons tests
	@.venv-test/bin/python tools/left_out.py "$(REQUIRE)" $(ALSO)

checks: .venv-test/.installed
	$(CHECKED)/ruff format --check $(PACKAGES) tests tools
	$(CHECKED)/ruff check $(PACKAGES) tests tools
	$(CHECKED)/mypy
	$(CHECKED)/lint-imports

wheel:
	rm -rf build dist
	$(if $(PY),.venv-$(notdir $(PY)),.venv-test)/bin/python -m pip wheel -qq --no-deps --wheel-dir dist .

.venv-test/.installed: $(INSTALLER) $(SOURCES)
	test -x .venv-test/bin/python || tools/make-venv .venv-test $(PYTHONS)
	$(MAKE) wheel
	PIP_QUIET=2 .venv-test/bin/python tools/install.py dist/*.whl train cpu sim dmc dev
	touch $@

tests: .venv-test/.installed
	$(ELSEWHERE) $(CURDIR)/$(CHECKED)/pytest $(PYTEST)

test-python:
	@test -n "$(PY)" || { echo "usage: make test-python PY=python3.10" >&2; exit 2; }
	@test -x .venv-$(notdir $(PY))/bin/python || tools/make-venv .venv-$(notdir $(PY)) $(PY)
	$(MAKE) wheel
	PIP_QUIET=2 .venv-$(notdir $(PY))/bin/python tools/install.py dist/*.whl cpu dev
	$(ELSEWHERE) $(CURDIR)/.venv-$(notdir $(PY))/bin/pytest $(PYTEST)

also-pythons:
	@for python in $(ALSO); do \
	  if test -x .venv-$$python/bin/python || tools/make-venv .venv-$$python $$python 2>/dev/null; \
	  then $(MAKE) test-python PY=$$python || exit 1; fi; \
	done

soak: .venv-test/.installed
	$(CHECKED)/edge-sac reproduce furuta
	$(CHECKED)/edge-sac reproduce memory

system:
	tools/system-packages

clean:
	rm -rf .venv .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
