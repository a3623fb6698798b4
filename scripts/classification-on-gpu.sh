#!/bin/bash
# The cells of the classification table on one GPU: bash scripts/classification-on-gpu.sh DATA OUT [SECONDS]
#
# DATA holds mnist/*.gz and the files of CIFAR-10; OUT gets table1.json, which
# `python -m benchmarks.table1 --merge OUT/table1.json` puts into results/. CELLS chooses: "augmented", "plain"
# (no augmentation), or both, which is the default. A run that is cut short leaves the cells it has.
#
# On an H200, 11 trainings side by side through MPS: an epoch of CIFAR-10 takes 0.2 s of the whole GPU with
# patches, 0.6 s with single pixels (those of 1024 positions), 0.25 s with the CNN. Measured: about 400 s for
# the patches of 3 to 7 with augmentation, 500 s for all the rest.
set -u
DATA=$1 OUT=$2 LIMIT=${3:-1000}
START=$(date +%s)
mkdir -p "$OUT"
export KERMIX_CACHE=${KERMIX_CACHE:-$OUT/cache} OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=2
if [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=$OUT/mps CUDA_MPS_LOG_DIRECTORY=$OUT/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d || true
fi

cells() { # the arguments of benchmarks.table1
  local left=$((LIMIT - ($(date +%s) - START)))
  [ "$left" -gt 30 ] || return 0
  timeout "$left" python3 -m benchmarks.table1 --data-root "$DATA" --out "$OUT/table1.json" \
    --seeds "${SEEDS:-0,1,2}" --stop-after $((left - 30)) "$@"
}

table() { # on or off: two lines of trainings, each of several at once
  (cells --dataset cifar10 --patch 3,5,7 --jobs 5 --beside 6 --augmentation "$1") &
  (cells --dataset cifar10 --model cnn --jobs 3 --beside 8 --augmentation "$1"
   cells --dataset mnist --model cnn --jobs 3 --beside 8 --augmentation "$1"
   cells --dataset mnist --patch 3,5,7 --jobs 3 --beside 8 --augmentation "$1") &
  (cells --dataset mnist --patch 1 --jobs 3 --beside 8 --augmentation "$1"
   cells --dataset cifar10 --patch 1 --jobs 3 --beside 8 --augmentation "$1") &
  wait
}

cells --dataset cifar10 --patch 1 --stop-after -1 > /dev/null # decodes the pictures once
for kind in ${CELLS:-augmented plain}; do
  if [ "$kind" = plain ]; then table off; else table on; fi
done
rm -f "$OUT"/*.lock
