PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint docs pages figures gallery clean

demo: .venv/ready
	bash scripts/demo.sh $(BIN)

# One thread for each of the two processes: more of them than cores wait for each other. Each takes
# a half of the tests in their order, so that what a module shares is made once. Compiled tests are
# kept for the next time, whatever the environment says, and memory of large arrays for the next
# array, which is quicker than giving it back to the system and taking it again.
test: .venv/ready
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= MALLOC_MMAP_THRESHOLD_=268435456 \
	MALLOC_TRIM_THRESHOLD_=1073741824 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

# The site, in site/index.html; tests of it take it from there while its sources are the same.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python scripts/site_sources.py

# Pages that are made from the files in results/ and examples/.
pages: .venv/ready
	$(BIN)/python -m benchmarks --page docs/benchmarks.md
	$(BIN)/python scripts/gallery.py --page
	$(BIN)/python scripts/paper_page.py
	$(BIN)/python scripts/commands_page.py

# Pictures of the pages, and of the gallery by running its examples: about five minutes each.
figures: .venv/ready
	MPLBACKEND=agg $(BIN)/python scripts/figures.py

gallery: .venv/ready
	MPLBACKEND=agg $(BIN)/python scripts/gallery.py

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and by its exact version: any other request may bring gigabytes of CUDA packages.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch .venv/ready
