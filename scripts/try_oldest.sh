#!/bin/bash
# The core tests with the oldest version of every package that pyproject.toml allows: bash scripts/try_oldest.sh [LOG].
set -eu
ROOT=$(cd "$(dirname "$0")/.." && pwd) WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
python3 "$ROOT/scripts/needed.py" lowest > "$WORK/lowest-versions.txt"
# What old packages call has been deprecated since by packages below them: no fault of ours, and no error here.
export PYTEST_ADDOPTS="-W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning -W ignore::FutureWarning"
bash "$ROOT/scripts/try_python.sh" "${PYTHON:-python3.11}" "$WORK/lowest-versions.txt" "${1:-$ROOT/results/oldest-versions.log}"
