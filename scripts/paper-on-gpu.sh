#!/bin/bash
# What of the paper asks for a GPU, on one: bash scripts/paper-on-gpu.sh DATA OUT [SECONDS]
#
# DATA holds mnist/*.gz, faces/orl-faces.npz and cifar10-jpeg.tar.xz (or the files of CIFAR-10). TASKS
# chooses, in this order of importance:
#
#   toy      cells of fig-toy: the authors' setting of Figure 1, four costs, TOY_SEEDS
#   images   cells of fig-images: MNIST and faces in pixels, four costs, two variances, three seeds
#   written  rows of Table 1 as Eqs. 25 to 27 are written, both readings of the norm, no augmentation
#   figures  other figures of the paper in full, on the CPU; FIGURES adds fig-generation, half an hour
#   tables   the image tables of docs/images.md anew (scripts/images-on-gpu.sh), a call of its own
#
# "toy images written figures" is the default. Everything ends within SECONDS, 540 unless told; what is not
# done by then is left out; a second call goes on with images, and with SEEDS=1,2 with what is written.
# OUT gets paper-results.tgz, with toy/*.json, cells/*.json, table1-as-written.json, paper/ and bench/;
# scripts/merge-paper.sh OUT/paper-results.tgz puts them into results/ and writes the pages anew. WORK, by
# default build/paper-on-gpu, keeps the loose files; PREVIOUS names an earlier paper-results.tgz to go on
# from where they are lost.
# STEPS, EPOCHS, IMAGES, SEEDS and DEVICE make it small, to try it on a CPU.
set -u
DATA=$1 OUT=$2 LIMIT=${3:-540}
WORK=$(realpath -m "${WORK:-build/paper-on-gpu}") START=$(date +%s)
CELLS=$WORK/results/cells WRITTEN=$WORK/results/table1-as-written.json
mkdir -p "$OUT" "$CELLS" "$WORK/logs"
[ -z "${PREVIOUS:-}" ] || tar -C "$WORK" -xzf "$PREVIOUS"
export KERMIX_CACHE=${KERMIX_CACHE:-$WORK/cache} OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=2
export PYTHONPATH=${PYTHONPATH:-src:.} PYTHONUNBUFFERED=1
PYTHON=${PYTHON:-python3} SEEDS=${SEEDS:-0,1,2} DEVICE=${DEVICE:-auto} TASKS=${TASKS:-toy images written figures}
if [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] && command -v nvidia-cuda-mps-control > /dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
  nvidia-cuda-mps-control -d || true
fi

left() { echo $((LIMIT - ($(date +%s) - START) - 15)); } # the last seconds are for packing

said() { echo "$(basename "$2"): exit $1 after $(($(date +%s) - START)) s"; }

cells() { # name of the log, then arguments of kermix.paper.image_cells
  local log=$WORK/logs/$1.log seconds
  shift
  seconds=$(left)
  [ "$seconds" -gt 20 ] || return 0
  timeout "$seconds" "$PYTHON" -m kermix.paper.image_cells --data-root "$DATA" --cells "$CELLS" \
    --device "$DEVICE" ${STEPS:+--steps "$STEPS" --width 16} \
    ${IMAGES:+--images "$IMAGES" --compared "$IMAGES"} --seeds "$SEEDS" \
    --stop-after $((seconds - 15)) "$@" >> "$log" 2>&1
  said $? "$log"
}

written() { # name of the log, then arguments of benchmarks.table1
  local log=$WORK/logs/$1.log seconds
  shift
  seconds=$(left)
  [ "$seconds" -gt 20 ] || return 0
  timeout "$seconds" "$PYTHON" -m benchmarks.table1 --data-root "$DATA" --out "$WRITTEN" \
    --device "$DEVICE" ${EPOCHS:+--set epochs=$EPOCHS --set width=8 --set output_width=8} \
    ${IMAGES:+--images "$IMAGES"} --seeds "$SEEDS" --stop-after $((seconds - 20)) --beside 8 "$@" \
    >> "$log" 2>&1
  said $? "$log"
}

figure() { # name
  local seconds
  seconds=$(left)
  [ "$seconds" -gt 20 ] || return 0
  timeout "$seconds" "$PYTHON" -m kermix reproduce "$1" --out "$WORK/results/paper" --overwrite \
    ${STEPS:+--quick} >> "$WORK/logs/$1.log" 2>&1
  said $? "$1"
}

toy() { # costs and seeds
  local seconds
  seconds=$(left)
  [ "$seconds" -gt 80 ] || return 0
  timeout "$seconds" "$PYTHON" -m kermix.paper.toy --cells "$WORK/results/toy" --device "$DEVICE" \
    --cost "$1" --seeds "$2" ${STEPS:+--quick} --stop-after $((seconds - 60)) >> "$WORK/logs/toy-$1.log" 2>&1
  said $? "toy-$1"
}

asked() { [[ " $TASKS " == *" $1 "* ]]; }

if asked toy; then # measured beside others on an H200: 24 trainings in 400 s
  mkdir -p "$WORK/results/toy"
  for cost in svd scalar vector matrix; do toy "$cost" "${TOY_SEEDS:-42,43,44,45,46,47}" & done
fi
if asked images; then
  for seed in ${SEEDS//,/ }; do # a seed of everything before the next
    SEEDS=$seed cells "images-mnist-a$seed" --set mnist --cost svd --variance 0.01,0.001 &
    SEEDS=$seed cells "images-mnist-b$seed" --set mnist --cost data,scalar,vector,matrix \
      --variance 0.01,0.001 &
    SEEDS=$seed cells "images-faces$seed" --set faces --cost data,svd,scalar,vector,matrix \
      --variance 0.01,0.001 &
  done
fi
if asked written; then
  # Seeds are in the outer loop: a call that is cut short has some of every cell.
  written written-mnist --dataset mnist --as-written element,vector --patch 7,1,3,5 --jobs 3 &
  written written-cifar10 --dataset cifar10 --as-written element,vector --patch 7,1,3,5 --jobs 3 &
fi
if asked figures; then # in one process each, trainings on the CPU
  (figure fig-measure; figure fig-identity; figure fig-singular-functions) &
  for name in ${FIGURES:-fig-prior fig-remarks}; do figure "$name" & done
fi
wait
if asked tables; then
  (
    export TASKS=${TABLES:-mnist cifar10 spaces stacked}
    bash "$(dirname "$0")/images-on-gpu.sh" "$DATA" "$WORK/bench" "$(left)" > "$WORK/logs/tables.log" 2>&1
  )
  mkdir -p "$WORK/results/bench/png"
  cp "$WORK"/bench/images-*.json "$WORK/results/bench/" 2> /dev/null
  cp "$WORK"/bench/png/*.png "$WORK/results/bench/png/" 2> /dev/null
fi
tar -C "$WORK" --exclude='*.lock' -czf "$OUT/paper-results.tgz" results logs
echo "written: $OUT/paper-results.tgz after $(($(date +%s) - START)) s"
