#!/usr/bin/env bash
# What the program can show in a few minutes, on any machine. Needs "make build".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fwpkm=build/release/fwpkm
export OMP_WAIT_POLICY=passive  # small steps: threads that spin are in the way of other programs
out=build/demo
golden=tests/data/golden/gdn_fwpkm.safetensors

show() {
  echo "\$ $*"
  "$@"
  echo
}

show "$fwpkm" cost --config configs/paper/gdn.json configs/paper/gdn_fwpkm-2-6-10.json
show "$fwpkm" golden "$golden" --device reference

# The same small model with a memory and without, on a stream of facts and later questions.
rm -rf "$out"
train=("$fwpkm" train --config configs/recall.json --data builtin:recall --steps 900 --valid-every 75)
show "${train[@]}" --out "$out/memory"
show "${train[@]}" --out "$out/no-memory" --set fwpkm.layers=
show "$fwpkm" curves "$out/memory" "$out/no-memory"
show "$fwpkm" eval recall --model "$out/memory" --show 8 --out "$out/memory-live" --json "$out/memory.json"
show "$fwpkm" eval recall --model "$out/memory" --freeze --readings 1 --out "$out/memory-frozen" --json "$out/frozen.json"
show "$fwpkm" eval recall --model "$out/no-memory" --readings 1 --out "$out/without" --json "$out/no-memory.json"

# Which slots an answer comes from, and what text wrote them.
show "$fwpkm" inspect slots --model "$out/memory" --read examples/facts.txt --prompt "ask ri ru" --expect " window" \
  --top 4 --page "$out/slots.html"

recall() {
  printf "%.2f" "$(sed -n 's/.*"recall_beyond_window": \([0-9.e-]*\),.*/\1/p' "$1" | tail -n 1)"
}
echo "Of facts that it read once, and that attention can no longer see, the model tells $(recall "$out/memory.json") again;" \
  "with its memory switched off $(recall "$out/frozen.json"), and trained without one" \
  "$(recall "$out/no-memory.json") (guessing: 0.016)."

show "$fwpkm" report "$out" --out "$out/report.html" --title "fwpkm demo"
echo "See $PWD/$out/report.html and $PWD/$out/slots.html"
