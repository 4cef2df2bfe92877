# The two commands that matter: `make book` builds the book, `make test` checks every claim in it.
# Paths are relative throughout, so that a checkout in a folder with spaces works. There the virtual
# environment lies in the user's cache: the compiler behind torch.compile splits its paths at spaces.

PYTHON ?= python3
VENV := $(shell case "$$PWD" in (*' '*) \
  echo "$${XDG_CACHE_HOME:-$$HOME/.cache}/t2book/$$(printf %s "$$PWD" | cksum | tr ' ' -)" ;; (*) echo .venv ;; esac)
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
BOOK := _build/html/index.html
NEW_ENOUGH = $(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
  sys.exit(None if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v[0]}.{v[1]}; try make PYTHON=python3.12 ...")'

.PHONY: help book test serve refresh bench gpu verify clean

help:
	@echo "make book      build the book into _build/html"
	@echo "make test      run every check: lint, library, kernels, notebooks, book"
	@echo "make serve     serve the built book on http://localhost:8000"
	@echo "make refresh   run the notebooks in fresh kernels and renew their outputs"
	@echo "make bench     time every rung of every operator side by side"
	@echo "make gpu       check and time the kernels, and run the notebooks, on a machine with a GPU"
	@echo "make verify    laws, golden vectors and gradients of every rung on this machine"

# One set-up for all targets; runs again only when what it installs has changed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(NEW_ENOUGH)
	@test -x $(PY) || { mkdir -p $(dir $(VENV)) && $(PYTHON) -m venv $(VENV); }
	@echo "Installing into $(VENV) (once; a few minutes) ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[book,test,kernels]"
	@touch $(INSTALLED)

book: $(INSTALLED)
	@$(PY) tools/build_book.py

test: $(INSTALLED)
	@$(PY) tools/run_tests.py

serve: $(INSTALLED)
	@test -f $(BOOK) || $(PY) tools/build_book.py
	@echo "http://localhost:8000  (stop with Ctrl-C)"
	@$(PY) -m http.server 8000 --directory _build/html

refresh: $(INSTALLED)
	@$(PY) tools/refresh.py

bench: $(INSTALLED)
	@$(PY) -m t2lib.bench

# With the Python that has torch and triton for this GPU: nothing is installed.
gpu:
	@$(NEW_ENOUGH)
	@$(PYTHON) tools/gpu.py

verify: $(INSTALLED)
	@$(PY) -m t2lib.verify

clean:
	rm -rf _build build dist
