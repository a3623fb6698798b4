#!/bin/bash
# Table models and TabularARGN on two cores each: bash scripts/tables-on-two-cores.sh DATA OUT [SECONDS]
#
# DATA holds the tables; OUT gets a sample of each and what is told about it. Jobs run side by side,
# each on two cores of its own, as many as there are pairs; what is not done by then is left out.
# `python -m benchmarks.generated_tables judge --samples OUT` scores them.
set -u
DATA=$1 OUT=$2 LIMIT=${3:-600}
TABLES=${TABLES-default beijing adult magic shoppers} PEER_TABLES=${PEER_TABLES-adult magic shoppers}
PAIRS=$(($(getconf _NPROCESSORS_ONLN) / 2)) MINUTES=${MINUTES:-6} STEPS=${STEPS-} PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
export OMP_NUM_THREADS=2 PYTHONPATH=${PYTHONPATH:-src:.} DATA OUT PYTHON MINUTES PAIRS STEPS

one() { # method, table, number of the job
  local first=$((2 * ($3 % PAIRS))) changes=()
  if [ "$1" = kermix ]; then changes=(${STEPS:+--set "steps=$STEPS"}); else changes=(--set "max_training_time=$MINUTES"); fi
  taskset -c "$first,$((first + 1))" "$PYTHON" -m benchmarks.generated_tables train --method "$1" \
    --data "$DATA" --out "$OUT" --tables "$2" "${changes[@]}" > "$OUT/$1-$2.log" 2>&1
  echo "$1 $2: exit $?"
}
export -f one

number=0
{
  for table in $TABLES; do echo "kermix $table $((number++))"; done
  for table in $PEER_TABLES; do echo "tabular-argn $table $((number++))"; done
} | timeout "$LIMIT" xargs -P "$PAIRS" -I{} bash -c 'one {}'
