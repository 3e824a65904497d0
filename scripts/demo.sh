#!/usr/bin/env bash
# What the program can show in a few seconds, on any machine. Needs "make build".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fwpkm=build/release/fwpkm
golden=tests/data/golden/gdn_fa_pkm.safetensors

show() {
  echo "\$ $*"
  "$@"
  echo
}

show "$fwpkm" cost --config configs/paper/*.json
show "$fwpkm" golden "$golden" --device reference
show "$fwpkm" golden "$golden" --device cpu

echo "Shown: the size and work of the paper's models, counted from their configs, and one small model" \
  "whose loss and gradients match recorded values, both in plain double precision and with the CPU kernels."
