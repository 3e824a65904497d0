#!/usr/bin/env bash
# Runs the fuzz targets, each for some seconds, and prints a line for each; builds nothing.
#   scripts/fuzz.sh [SECONDS] [TARGET...]      10 seconds and all targets unless told otherwise
# Inputs that found something new are kept in build/fuzz/corpus/<target> and are where the next run
# starts. A crash leaves its input in build/fuzz/crashes, and the exit status is 1. docs/fuzzing.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

programs=build/sanitize/fuzz
seconds=${1:-10}
shift || true
if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
  echo "[fuzz] '$seconds' is not a number of seconds" >&2
  exit 2
fi
if [[ ! -x $programs/make_seeds ]]; then
  echo "[fuzz] nothing is built in $programs; call make fuzz" >&2
  exit 2
fi
targets=("$@")
if ((!${#targets[@]})); then
  for source in fuzz/fuzz_*.cpp; do
    targets+=("$(basename "$source" .cpp)")
  done
fi

# Inputs have at most 16 KiB. No reader then has a reason for a block of 64 MB, or for so much memory
# that a process with its sanitizers reaches 1 GB. Hangs are found by the targets themselves, which
# watch their processor time; -timeout is for those that sleep.
limits=(-max_len=16384 -malloc_limit_mb=64 -rss_limit_mb=1024 -timeout=60)

out=build/fuzz
mkdir -p $out/crashes $out/logs
# Targets write their input as a file: to memory, if the system has a place for it there.
TMPDIR=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" fwpkm-fuzz-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

$programs/make_seeds $out/seeds configs

status=0
for target in "${targets[@]}"; do
  if [[ ! -x $programs/$target ]]; then
    echo "[fuzz] there is no target '$target' in $programs" >&2
    exit 2
  fi
  mkdir -p "$out/corpus/$target"
  log=$out/logs/$target.log
  if "$programs/$target" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -dict="$out/seeds/$target.dict" -artifact_prefix="$out/crashes/$target-" \
    "$out/corpus/$target" "$out/seeds/$target" >"$log" 2>&1; then
    awk -v target="$target" '
      /^#[0-9]+\tDONE/ { coverage = $4; corpus = $8 }
      /^Done [0-9]+ runs in/ { runs = $2; seconds = $5 }
      END { printf "%-16s %9d runs, coverage %5d, corpus %9s, %d s\n", target, runs, coverage, corpus, seconds }' "$log"
  else
    status=1
    tail -n 40 "$log" >&2
    echo "[fuzz] $target failed; its log is $log, its input is named above, at the end" >&2
  fi
done
exit $status
