# make demo | demo-shell | test | fuzz | check | lint | deb | requirements | release | clean. What each does: README.md.
RELEASE ?= bookworm
.ONESHELL:
.SHELLFLAGS := -eu -c
.PHONY: demo demo-shell test fuzz check lint deb requirements release clean help
# Tests start hundreds of Python programs: compiled once is four times as quick.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo [RELEASE=bookworm|trixie|forky]   a whole burst, on this machine, in boxes (root)"
	echo "make demo-shell                             the same site, and a prompt in it instead of the story"
	echo "make lint                                   ruff, mypy, import-linter"
	echo "make check                                  the quick loop: lint, unit tests that take no time"
	echo "make test                                   everything, real Slurm included (root)"
	echo "make deb [RELEASE=bookworm|trixie|forky]    the Debian package, in dist/ (root)"
	echo "make requirements                           config/requirements.txt anew, after a change of constraints.txt"
	echo "make release                                wheel, source, components (CycloneDX) and SHA256SUMS, in dist/"
	echo "make fuzz [BURSTD_FUZZ_SECONDS=300]         hostile text for every parser, so long for each"

demo:
	@venv=$$(tests/lab/setup.sh boxes)
	exec "$$venv/bin/python" -m tests.lab.demo --release "$(RELEASE)"

demo-shell:
	@venv=$$(tests/lab/setup.sh boxes)
	exec "$$venv/bin/python" -m tests.lab.demo --release "$(RELEASE)" --shell

check: lint
	@venv=$$(tests/lab/setup.sh plain)
	"$$venv/bin/python" -m pytest -q -n 2 --quick

lint:
	@venv=$$(tests/lab/setup.sh plain)
	"$$venv/bin/ruff" check .
	"$$venv/bin/ruff" format --check .
	# Kept with the environment that it depends on: a new clone checks only what has changed.
	"$$venv/bin/mypy" --cache-dir "$$venv/mypy"
	"$$venv/bin/lint-imports"

test:
	@venv=$$(tests/lab/setup.sh boxes)
	exec "$$venv/bin/python" -m tests.lab.suite

fuzz:
	@venv=$$(tests/lab/setup.sh plain)
	export BURSTD_FUZZ_SECONDS="$${BURSTD_FUZZ_SECONDS:-300}"
	exec "$$venv/bin/python" -m pytest -q tests/security -k fuzz -m "not boxes and not slurm and not clouds"

deb:
	@venv=$$(tests/lab/setup.sh boxes)
	exec "$$venv/bin/python" -m tests.lab.deb --release "$(RELEASE)"

requirements:
	@venv=$$(tests/lab/setup.sh plain)
	exec "$$venv/bin/python" -m tests.lab.requirements

release:
	@venv=$$(tests/lab/setup.sh plain)
	exec "$$venv/bin/python" -m tests.lab.release

clean:
	@rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
