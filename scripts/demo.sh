#!/usr/bin/env bash
# What the program can show in a few minutes, on any machine. Needs "make build".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fwpkm=build/release/fwpkm
out=build/demo
golden=tests/data/golden/gdn_fa_pkm.safetensors

show() {
  echo "\$ $*"
  "$@"
  echo
}

show "$fwpkm" cost --config configs/paper/gdn.json configs/paper/gdn_fwpkm-2-6-10.json
show "$fwpkm" golden "$golden" --device reference
rm -rf "$out"
show "$fwpkm" train --config configs/tiny.json --data builtin --out "$out" --sample-every 100
show "$fwpkm" generate --model "$out/best" --prompt "Nina Price lived in " --tokens 300 --temperature 0.7

echo "Shown: the size and work of two of the paper's models; a whole model that matches the numbers of the authors' code;" \
  "and a small model that learnt, from stories made up on the spot, to write such stories: its validation loss is on" \
  "documents it never saw."
