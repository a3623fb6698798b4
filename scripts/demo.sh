#!/bin/bash
# What kermix does, in about a minute: the paper's mixture, then a real table fitted, sampled and compared.
set -eu
BIN=${1:-.venv/bin}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)}
WORK=$(mktemp -d runs/demo-XXXX 2> /dev/null || { mkdir -p runs && mktemp -d runs/demo-XXXX; })

show() {
  printf '\n\033[1m$ kermix %s\033[0m\n' "$*"
  "$BIN/kermix" "$@"
}

show fit --quick --out "$WORK/mixture"
"$BIN/python" - "$WORK/wine.csv" << 'END'
import sys

from sklearn.datasets import load_wine

wines = load_wine(as_frame=True)
grapes = dict(enumerate(("barolo", "grignolino", "barbera")))
wines.data.assign(grape=wines.target.map(grapes)).to_csv(sys.argv[1], index=False)
END
printf '\n178 Italian wines, from scikit-learn: %s\n' "$WORK/wine.csv"
show fit "$WORK/wine.csv" --quick --out "$WORK/model"
show sample "$WORK/model" -n 5 -o "$WORK/five.csv" --given grape=barolo
cat "$WORK/five.csv"
show sample "$WORK/model" -n 178 -o "$WORK/new.csv"
show compare "$WORK/wine.csv" "$WORK/new.csv"
printf '\nReports with pictures: %s and %s\n' "$WORK/mixture/report.html" "$WORK/model/report.html"
