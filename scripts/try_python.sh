#!/bin/bash
# The core tests in a clean environment: bash scripts/try_python.sh PYTHON CONSTRAINTS [LOG]. PYTHON is an interpreter,
# CONSTRAINTS a file of versions for pip. Where PyTorch comes with CUDA, some 5 GB are downloaded into a folder that
# is removed at the end, or into $KEEP, which the next run brings up to date.
set -u
PYTHON=$1 CONSTRAINTS=$(realpath "$2") ROOT=$(cd "$(dirname "$0")/.." && pwd) WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
ENV=$(realpath -m "${KEEP:-$WORK/env}")
LOG=$(realpath -m "${3:-$ROOT/results/python-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])').log}")
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH
TOOLS="pytest pytest-timeout pytest-xdist hypothesis mpmath openpyxl polars"
ROOMS=${ROOMS-"kernels linalg mixtures data sketches costs spectrum comparison evaluation models sklearn"}

told() { echo "$*" | tee -a "$LOG"; }

mkdir -p "$(dirname "$LOG")"
: > "$LOG"
told "kermix $(git -C "$ROOT" describe --always --dirty), $("$PYTHON" --version), $(basename "$CONSTRAINTS")"
"$PYTHON" -m venv "$ENV" || exit 1
# PyTorch first and by its version: any other request may bring another build of it.
"$ENV/bin/pip" install --quiet -c "$CONSTRAINTS" torch || { told "PyTorch FAILED to install"; exit 1; }
(cd "$ROOT" && "$ENV/bin/pip" install --quiet -c "$CONSTRAINTS" ".[all]" $TOOLS) || { told "FAILED to install"; exit 1; }
"$ENV/bin/pip" uninstall --quiet --yes kermix # the tests take what lies beside them
told "$("$ENV/bin/pip" list --format=freeze | grep -iv '^\(nvidia\|cuda\|pip\|setuptools\)' | tr '\n' ' ' | fold -s -w 119)"
(cd "$ROOT" && PYTHONPATH=src nice -n 5 "$ENV/bin/python" -m pytest -p no:cacheprovider -n "${PROCESSES:-2}" --dist worksteal \
  --tb=short $(printf 'tests/%s ' $ROOMS)) > "$WORK/tests.log" 2>&1
status=$?
[ "$status" = 0 ] || tail -n 200 "$WORK/tests.log" | cut -c1-160
grep -E '^(FAILED|ERROR) ' "$WORK/tests.log" | cut -c1-160 | tee -a "$LOG"
told "tests of $ROOMS:"
told "$(tail -n 1 "$WORK/tests.log")"
exit "$status"
