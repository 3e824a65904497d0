#!/usr/bin/env bash
# Trains a small model with memories of both kinds on the CPU and on the emulated GPU: losses and norms of gradients must
# agree, and the same seed must give the same bytes, also with tables that stay in the host's memory, and with a run that
# was saved, validated and resumed on its way.
#   train_test.sh PROGRAM CONFIG
set -euo pipefail

program=$1 config=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

steps=3
train() { # OUT DEVICE MEMORY [SETTINGS]
  "$program" train --config "$config" --data builtin:recall --steps "$steps" --valid-every "${valid_every:-0}" --seed 3 \
    --out "$folder/$1" --device "$2" --set memory="$3" --set hidden_size=64 --set layers=2 --set train.batch=2 \
    --set train.micro_batch=2 --set train.seq=96 --set pkm.layers=[0] --set pkm.n_subkeys=16 --set pkm.topk=8 --set pkm.key_dim=32 \
    --set pkm.value_dim=64 --set fwpkm.n_subkeys=32 --set fwpkm.chunk=32 "${@:4}" >"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    exit 1
  }
}
agree() { # A B LIMIT
  paste -d' ' <(numbers "$1") <(numbers "$2") | awk -v limit="$3" -v what="$1 and $2" '
    {
      for (i = 1; i <= 2; ++i) {
        apart = ($i - $(i + 2)) / $(i + 2)
        worst = apart > worst ? apart : -apart > worst ? -apart : worst
      }
      ++steps
    }
    END {
      printf "%s: %d steps, at most %.1e apart\n", what, steps, worst
      exit steps != 3 || worst > limit
    }'
}
numbers() { # OUT: gradient norm and loss of each step
  sed -E 's/.*"grad_norm":([^,]*),.*"loss":([^,]*),.*/\1 \2/' "$folder/$1/metrics.jsonl"
}

for memory in shared per_sequence; do
  train "cpu-$memory" cpu "$memory"
  train "floats-$memory" cuda:f32 "$memory"
  train "bf16-$memory" cuda "$memory"
  agree "floats-$memory" "cpu-$memory" 1e-4
  agree "bf16-$memory" "cpu-$memory" 5e-2
done
weights=checkpoints/step-00000003/model.safetensors
train again cuda shared
cmp "$folder/again/$weights" "$folder/bf16-shared/$weights"
echo "the same seed gives the same bytes"
for device in cuda cuda:f32; do
  train "near-$device" "$device" shared --set fwpkm.n_subkeys=256
  FWPKM_GPU_MEMORY=32 train "far-$device" "$device" shared --set fwpkm.n_subkeys=256
  grep -q "stay in the host's memory" "$folder/log"
  cmp "$folder/near-$device/$weights" "$folder/far-$device/$weights"
done
echo "so do tables in the host's memory"
# PKM's table is read after the first layer, and its update may last until then.
steps=5
train whole cuda shared --set pkm.layers=[1]
valid_every=1 train stops cuda shared --set pkm.layers=[1] --valid-batches 1 --save-every 3
cp -r "$folder/stops" "$folder/resumed"
rm -r "$folder/resumed/checkpoints/step-00000005"
train resumed cuda shared --set pkm.layers=[1] --resume
for run in stops resumed; do
  for file in model optimizer; do
    cmp "$folder/whole/checkpoints/step-00000005/$file.safetensors" "$folder/$run/checkpoints/step-00000005/$file.safetensors"
  done
done
echo "so does a run that stops on its way"
