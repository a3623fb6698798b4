#!/bin/bash
# Put what scripts/paper-on-gpu.sh brought into results/, and write the pages anew:
# bash scripts/merge-paper.sh FILE.tgz ...
#
# Cells of fig-images stay in build/paper-cells, for a later part of them; their numbers go into results/.
set -eu
PYTHON=${PYTHON:-python3} PART=$(mktemp -d)
export PYTHONPATH=${PYTHONPATH:-src:.}
rows() { # of the tables of a benchmark's file
  "$PYTHON" -c 'import json, sys; print(sum(map(len, json.load(open(sys.argv[1]))["tables"].values())))' "$1"
}

for file in "$@"; do tar -C "$PART" -xzf "$file"; done
if compgen -G "$PART/results/cells/*.json" > /dev/null; then
  mkdir -p build/paper-cells
  cp "$PART"/results/cells/*.json build/paper-cells/
  "$PYTHON" -m kermix reproduce fig-images --cells build/paper-cells --out results/paper \
    --overwrite ||
    echo "fig-images is left as it is"
fi
if compgen -G "$PART/results/toy/*.json" > /dev/null; then
  mkdir -p build/toy
  cp "$PART"/results/toy/*.json build/toy/
  "$PYTHON" -m kermix reproduce fig-toy --cells build/toy --out results/paper --overwrite
fi
if compgen -G "$PART/results/paper/*.json" > /dev/null; then
  cp "$PART"/results/paper/fig-* results/paper/
fi
if [ -e "$PART/results/table1-as-written.json" ]; then
  "$PYTHON" -m benchmarks.table1 --merge "$PART/results/table1-as-written.json" \
    --out results/table1-as-written.json
  "$PYTHON" -m benchmarks.table1 --page docs/classification.md
  "$PYTHON" -m kermix reproduce table-as-written --cells results --out results/paper --overwrite
fi
for file in "$PART"/results/bench/images-*.json; do
  [ -e "$file" ] || continue
  known=results/bench/$(basename "$file" .json)-${MACHINE:-h200}.json
  if [ -e "$known" ] && [ "$(rows "$file")" -lt "$(rows "$known")" ]; then
    echo "$file has fewer rows than $known and is left out"
  else
    cp "$file" "$known"
  fi
done
if compgen -G "$PART/results/bench/png/*.png" > /dev/null; then
  cp "$PART"/results/bench/png/*.png results/images/
  "$PYTHON" -m benchmarks.images --page docs/images.md
fi
"$PYTHON" -m kermix reproduce table-classification --cells results/paper --out results/paper \
  --overwrite
"$PYTHON" scripts/paper_page.py
rm -rf "$PART" results/paper/index.html
