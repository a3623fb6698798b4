#!/bin/bash
# What kermix does, in about a minute: a real table is learned, asked, completed, generated and compared.
set -eu
BIN=${1:-.venv/bin}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN)}
WORK=$(mktemp -d runs/demo-XXXX 2> /dev/null || { mkdir -p runs && mktemp -d runs/demo-XXXX; })
DATA=examples/penguins.csv

say() { printf '\n%s\n' "$*"; }
show() {
  printf '\033[1m$ kermix %s\033[0m\n' "$*"
  "$BIN/kermix" "$@"
}

say "344 penguins of Antarctica, as they were noted: ids, dates, words, and gaps."
head -n 5 "$DATA"
say "Learn the table: from all of its few rows, in as many steps as benchmarks/demo.py tries 20 times."
show fit "$DATA" --steps 1000 --validation-fraction 0 --out "$WORK/penguins"
say "Fill its gaps, and leave empty what has no value."
show impute "$WORK/penguins" "$DATA" -o "$WORK/filled.csv"
say "New penguins on request: female Gentoos."
show sample "$WORK/penguins" -n 4 --given species=Gentoo --given sex=female -o "$WORK/gentoos.csv"
cat "$WORK/gentoos.csv"
say "As many new penguins as there were. Do they differ from the real ones?"
show sample "$WORK/penguins" -n 344 -o "$WORK/new.csv"
show compare "$DATA" "$WORK/new.csv" --report "$WORK/compare.html"
say "Pages to look at: $WORK/penguins/report.html and $WORK/compare.html. To ask on: kermix explore $WORK/penguins"
