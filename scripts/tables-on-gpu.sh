#!/bin/bash
# Table models of benchmarks.generated_tables on one GPU: bash scripts/tables-on-gpu.sh DATA OUT [SECONDS]
#
# DATA holds the tables. OUT gets tables.tgz: chosen/ (SEEDS models of each of the five tables) and one
# folder for each setting of CHOICES that was tried on other tables. Small kernels of BESIDE processes
# share the GPU best through MPS, which is started if it can be. What is not done by then is left out.
# `python -m benchmarks.generated_tables judge --samples FOLDER` scores a folder.
set -u
DATA=$1 OUT=$2 LIMIT=${3:-500}
WORK=$(realpath -m "${WORK:-build/tables-on-gpu}") START=$(date +%s)
SEEDS=${SEEDS-0 1 2 3 4} TABLES=${TABLES:-default beijing adult magic shoppers}
CHOICES=${CHOICES-"width=768 width=512 width=768,dropout=0.2"}
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda}
mkdir -p "$OUT" "$WORK"
export OMP_NUM_THREADS=1 PYTHONPATH=${PYTHONPATH:-src:.} PYTHON DATA DEVICE
if [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d || true
fi

one() { # folder, table, seed, settings with commas between
  local changes=() name
  IFS=, read -ra given <<< "${4:-}"
  for name in "${given[@]}"; do changes+=(--set "$name"); done
  "$PYTHON" -m benchmarks.generated_tables train --data "$DATA" --out "$1" --tables "$2" --seeds "$3" \
    --device "$DEVICE" ${STEPS:+--set "steps=$STEPS"} "${changes[@]}" > "$1-$2-$3.log" 2>&1
  echo "$(basename "$1") $2 $3: exit $?"
}
export -f one

jobs_of() { # one line for each model
  local seed table choice
  for seed in $SEEDS; do for table in $TABLES; do echo "$WORK/chosen $table $seed"; done; done
  for choice in $CHOICES; do
    for seed in ${CHOICE_SEEDS:-0}; do
      for table in flights diamonds letter; do echo "$WORK/${choice//,/-} $table $seed $choice"; done
    done
  done
}

jobs_of | timeout "$((LIMIT - 20))" xargs -P "${BESIDE:-10}" -I{} bash -c 'one {}'
tar -C "$WORK" -czf "$OUT/tables.tgz" --exclude mps --exclude mps-log .
echo "written: $OUT/tables.tgz after $(($(date +%s) - START)) s"
