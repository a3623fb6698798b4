#!/bin/bash
# All tables of `benchmarks.images` on one GPU: bash scripts/images-on-gpu.sh DATA OUT [SECONDS]
#
# DATA holds mnist/*.gz and the files of CIFAR-10; OUT gets images-*.json, png/ and logs. TASKS chooses
# among "mnist cifar10 spaces stacked", which is the default. Small kernels of several processes share the
# GPU best through MPS, which is started if it can be. The N = 2000 SVDs of stacked MNIST run alone at the
# end: beside them, processes with small kernels wait.
#
# Measured on an H200 with six processes side by side, and others beside them: 450 s for the first part
# without the debiased rows, which are a third more, and 75 s for stacked MNIST. A run that is cut short
# leaves the rows it has.
set -u
DATA=$1 OUT=$2 LIMIT=${3:-540}
WORK=$OUT/work START=$(date +%s)
mkdir -p "$WORK"
export KERMIX_CACHE=${KERMIX_CACHE:-$WORK/cache}
if [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d || true
fi

left() { echo $((LIMIT - ($(date +%s) - START))); }

part() { # name, task, methods with semicolons between
  local seconds
  [[ " ${TASKS:-mnist cifar10 spaces stacked} " == *" $2 "* ]] || return 0
  seconds=$(left)
  [ "$seconds" -gt 5 ] || return 0
  timeout "$seconds" python3 -m benchmarks.images --task "$2" --methods "$3" --data-root "$DATA" \
    --work "$WORK" --images "$OUT/png" --out "$OUT/part-$1.json" ${SCALE:+--scale "$SCALE"} \
    > "$OUT/$1.log" 2>&1
  echo "$1: exit $? after $(($(date +%s) - START)) s"
}

joined() { # task, parts
  local task=$1 found=() name
  shift
  for name in "$@"; do [ -e "$OUT/part-$name.json" ] && found+=("$OUT/part-$name.json"); done
  [ ${#found[@]} -eq 0 ] && return 0
  python3 -m benchmarks.images --task "$task" --join "${found[@]}" --out "$OUT/images-$task.json"
}

(part c0 cifar10 none
 part c1 cifar10 "svd;svd, debiased;references;sinkhorn" & part c3 cifar10 "vector, debiased;scalar, debiased;mmd"
 part c2 cifar10 "vector;matrix;matrix, debiased;scalar"; wait) &
part m0 mnist none
(part m1 mnist "svd;references"; part s1 spaces "pixels;random;codes") &
part m2 mnist "mixture svd+em;mmd;scalar" &
part m3 mnist "vector;matrix" &
part m4 mnist "mixture svd;energy;sinkhorn" &
part m5 mnist "svd, debiased;vector, debiased" &
part m6 mnist "matrix, debiased;scalar, debiased" &
part s2 spaces "codes, decoded;several;coarse;references" &
wait
part t1 stacked \
  "products svd+em;products em;references;svd, debiased;svd;mixture svd+em;mixture em;mixture svd+em of 16000"
joined mnist m1 m2 m3 m4 m5 m6
joined cifar10 c1 c2 c3
joined spaces s1 s2
joined stacked t1
