#!/usr/bin/env bash
# What to run on a GPU that you have for a while: three runs of at most ten minutes.
#
#     scripts/gpu/visit.sh tests OUT        # builds memplan first
#     scripts/gpu/visit.sh bench OUT
#     scripts/gpu/visit.sh programs OUT
#
# Nothing is fetched and nothing installed: memplan is built in place with what the
# interpreter has (scikit-build-core, nanobind, CMake, ninja, a C++20 compiler), unless
# BUILT=1 says that it is there. PYTHON names the interpreter, LIMIT the seconds of a
# run. OUT/RUN.log has all output. A step that fails or hangs stops no other one. Ends
# with 1 unless every step succeeded.
set -u
run=${1:?tests, bench or programs} out=$(mkdir -p "${2:?a folder}" && realpath "$2")
root=$(realpath "$(dirname "$0")/../..") python=${PYTHON:-python3}
exec > >(tee "$out/$run.log") 2>&1
export PYTHONPATH=$root PYTHONUNBUFFERED=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"; exec >&- 2>&-; wait' EXIT
cd "$folder" || exit
end=$((SECONDS + ${LIMIT:-540})) failed=0

# step SECONDS NAME COMMAND...: for all the time that is left if SECONDS is 0.
step() {
  local most=$1 name=$2 left=$((end - SECONDS)) begun=$SECONDS
  shift 2
  ((most == 0 || most > left)) && most=$left
  echo "==== $name: $*"
  if ((most < 5)); then
    echo "---- $name: left out, there is no time for it"
    failed=1
    return 1
  fi
  timeout --kill-after=5 "$most" "$@"
  local code=$?
  echo "---- $name: ended with $code after $((SECONDS - begun)) s"
  ((code == 0)) || failed=1
  return $code
}

memplan() { step 120 "memplan $1" "$python" -m memplan "$@"; }

build() {
  local wheel="pip wheel -q --no-index --no-build-isolation --no-deps"
  step 300 build "$python" -m $wheel -w . "$root" &&
    (cd "$root" && "$python" -m zipfile -e "$folder"/memplan-*.whl "$folder/wheel") &&
    cp "$folder"/wheel/memplan/native/*.so "$root/memplan/native/"
}

tests() {
  local many="$root/scripts/gpu/many_requests.py 300000"
  nvidia-smi
  # A file of its own each: one that ends the interpreter ends no other.
  for name in training soak stacks; do
    step 150 "tests $name" "$python" -m pytest -q -rs -p no:cacheprovider \
      "$root/tests/gpu/test_gpu_$name.py"
  done
  step 60 requests "$python" $many
  memplan record -q --device cuda --stacks none --steps all -o m.parquet $many
  # As many requests as there is time for.
  step 0 soak "$python" "$root/scripts/gpu/soak.py" 1000000 \
    --seconds $((end - SECONDS - 15))
}

bench() {
  # With the records, so that a second run goes on where time ran out.
  step 0 bench "$python" "$root/scripts/benchmark.py" gpu --timeout 150 --repeats 3 \
    --warmups 0 --json "$out/bench.jsonl"
}

programs() {
  local asks="$root/scripts/gpu/compatibility.py"
  local small="$root/scripts/gpu/train.py gpt2 --batch-size 1 --length 128 --steps 6"
  step 120 native "$python" "$asks" >native.txt
  memplan record -q --device cuda -o c.parquet "$asks" --steps-only
  memplan solve c.parquet -o c.json
  memplan apply -q c.json "$asks" >planned.txt
  memplan record -q --device cuda --steps all -o r.parquet "$asks" >recorded.txt
  sed -i '/^====/d; /^----/d' native.txt planned.txt recorded.txt
  step 20 "planned as native" diff native.txt planned.txt
  step 20 "recorded as native" diff native.txt recorded.txt
  memplan record -q --device cuda -o s.parquet $small
  memplan solve s.parquet -o s.json
  # Last, as it takes longest: many times what it takes without.
  command -v compute-sanitizer >/dev/null &&
    step 0 memcheck compute-sanitizer --tool memcheck --report-api-errors no \
      --error-exitcode 99 --target-processes all \
      "$python" -m memplan apply -q s.json $small
}

((${BUILT:-0})) || build || exit 1
case $run in
  tests | bench | programs) "$run" ;;
  *) echo "there is no run $run" && exit 2 ;;
esac
exit "$failed"
