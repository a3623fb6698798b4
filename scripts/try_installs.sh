#!/bin/bash
# Build the wheel, install it without and with each extra of pyproject.toml into environments of their own, and try
# what a user would; then unpack the sdist and run some of its tests: bash scripts/try_installs.sh [LOG]. PyTorch is
# installed once, and seen by all environments.
set -u
LOG=$(realpath -m "${1:-results/installs.log}")
ROOT=$(cd "$(dirname "$0")/.." && pwd) WORK=$(mktemp -d)
EXTRAS=${EXTRAS-"none $(python3 "$ROOT/scripts/needed.py" extras)"}  # a plus: with the command line
trap 'rm -rf "$WORK"' EXIT
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH
PIP="pip install --quiet --disable-pip-version-check -c $ROOT/constraints.txt"
failed=0

told() { echo "$*" | tee -a "$LOG"; }
try() { # extra, expected status, command: its last line is logged
  local extra=$1 wanted=$2 status found
  shift 2
  found=$(cd "$WORK/place" && "$@" 2>&1)
  status=$?
  [ "$status" = "$wanted" ] && mark=ok || { mark=FAILED failed=1; }
  local shown="$(basename "$1") ${*:2}"
  printf '%-7s %-6s %s (%s)\n        %s\n' "$extra" "$mark" "${shown//$WORK\//}" "exit $status" \
    "$(echo "$found" | grep -v '^ *$' | tail -n 1 | cut -c1-160)" | tee -a "$LOG"
}

mkdir -p "$(dirname "$LOG")" "$WORK/place"
printf 'a,b,colour\n' > "$WORK/place/t.csv"
for k in $(seq 60); do echo "$((k * 7 % 13)).$((k % 10)),$((k * 5 % 17)).5,$([ $((k % 3)) = 0 ] && echo red || echo blue)"; done >> "$WORK/place/t.csv"
: > "$LOG"
told "kermix $(git -C "$ROOT" rev-parse --short HEAD), Python $(python3 -c 'import platform; print(platform.python_version())')"
python3 -m venv "$WORK/base" && $WORK/base/bin/$PIP torch numpy || exit 1
python3 -m venv "$WORK/tools" && $WORK/tools/bin/$PIP build twine || exit 1
"$WORK/tools/bin/python" -m build --outdir "$WORK/dist" "$ROOT" > "$WORK/build.log" 2>&1 || { tail -5 "$WORK/build.log"; exit 1; }
(cd "$WORK/dist" && "$WORK/tools/bin/twine" check --strict ./*) 2>&1 | sed 's/\x1b\[[0-9;]*m//g' | tee -a "$LOG"
WHEEL=$(ls "$WORK"/dist/*.whl) SITE=$("$WORK/base/bin/python" -c 'import torch; print(torch.__path__[0].rpartition("/")[0])')

for wanted in $EXTRAS; do
  extra=${wanted%+} env=$WORK/${wanted%+}
  python3 -m venv "$env"
  echo "$SITE" > "$("$env/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
  $env/bin/$PIP "kermix$([ "$extra" = none ] || echo "[$extra]") @ file://$WHEEL" || { told "$extra FAILED to install"; failed=1; continue; }
  try "$extra" 0 "$env/bin/python" -c "import torch, kermix as km; print(float(km.svd_cost(torch.eye(3), torch.eye(3), 0.1, normalized=True)))"
  if [ "$extra" = "$wanted" ]; then
    try "$extra" 1 "$env/bin/kermix" --help
    continue
  fi
  rm -rf "$WORK/place/runs" "$WORK"/place/*.sketch "$WORK"/place/[n-z]*.csv.out
  try "$extra" 0 "$env/bin/kermix" --version
  try "$extra" 0 "$env/bin/kermix" schema t.csv
  try "$extra" 0 "$env/bin/kermix" fit t.csv --steps 20 --out "runs/$extra"
  try "$extra" 0 "$env/bin/kermix" resume "runs/$extra"
  try "$extra" 0 "$env/bin/kermix" sample "runs/$extra" -n 20 -o "$extra-new.csv"
  try "$extra" 0 "$env/bin/kermix" score "runs/$extra" t.csv
  try "$extra" 0 "$env/bin/kermix" impute "runs/$extra" t.csv -o "$extra-full.csv"
  try "$extra" 0 "$env/bin/kermix" predict "runs/$extra" t.csv --target colour
  try "$extra" 0 "$env/bin/kermix" classify t.csv --target colour --quick --out "runs/$extra-class"
  try "$extra" 0 "$env/bin/kermix" compare t.csv "$extra-new.csv" --report "$extra.html"
  try "$extra" 0 "$env/bin/kermix" evaluate t.csv "$extra-new.csv" --report "$extra-e.html"
  try "$extra" 0 "$env/bin/kermix" drift t.csv --by colour
  try "$extra" 0 "$env/bin/kermix" sketch t.csv --columns a,b -o "$extra.sketch"
  try "$extra" 0 "$env/bin/kermix" spectrum t.csv --report "$extra-s.html"
  try "$extra" 0 "$env/bin/kermix" fit moons --quick --steps 20 --refine-steps 5 --out "runs/$extra-moons"
  try "$extra" 0 "$env/bin/kermix" reproduce fig-measure --quick --out "runs/$extra-paper"
done

# The sdist, in a folder of its own, with what its tests need.
mkdir "$WORK/sdist" && tar -xzf "$WORK"/dist/*.tar.gz -C "$WORK/sdist" --strip-components=1
python3 -m venv "$WORK/tests"
echo "$SITE" > "$("$WORK/tests/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
$WORK/tests/bin/$PIP "$WORK/sdist[test]" || { told "sdist FAILED to install"; failed=1; }
try sdist 0 env -C "$WORK/sdist" "$WORK/tests/bin/python" -m pytest -p no:cacheprovider tests/linalg tests/mixtures tests/cli/test_start.py tests/cli/test_cli_help.py
[ "$failed" = 0 ] && told "all as expected" || { told "something FAILED"; exit 1; }
