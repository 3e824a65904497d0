#!/usr/bin/env bash
# The same session on the CPU, on the emulated GPU and on both in turn: read, flush, mark, fork, go on, go back, ask. What
# was read and written, by how much slots changed and what is said must agree.
#   session_test.sh PROGRAM CONFIG
set -euo pipefail

program=$1 config=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

quietly() {
  "$program" "$@" >"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    exit 1
  }
}
quietly train --config "$config" --data builtin --steps 4 --valid-every 0 --seed 3 --out "$folder/model" --set vocab_size=257 \
  --set hidden_size=64 --set layers=2 --set train.batch=2 --set train.micro_batch=2 --set train.seq=64 \
  --set fwpkm.n_subkeys=32 --set fwpkm.chunk=32
for i in 1 2 3; do
  printf 'The box number %d is green and lies under the stairs. ' $i $((i * 7)) $((i + 40)) >"$folder/text$i"
done

# Numbers that both devices must agree on.
agree() { # A B
  paste -d' ' "$1" "$2" | awk -v what="$(basename "$1" .numbers)" '
    {
      apart = ($1 - $2) / ($2 == 0 ? 1 : $2)
      worst = apart > worst ? apart : -apart > worst ? -apart : worst
    }
    END {
      printf "%s: %d numbers, at most %.1e apart\n", what, NR, worst
      exit NR < 100 || worst > 1e-3
    }'
}
# Counts and changes that a command tells; those of slots come in the order of their size.
told() { # JSON
  grep -oE '"(tokens|position|updates|queued|slots|moved|furthest|change)": *-?[0-9.e+-]+' "$1" | sed 's/.*: *//'
}

walk() { # NAME DEVICE DEVICE: one device reads, the other goes on
  local file=$folder/$1.session numbers=$folder/$1.numbers
  quietly session new "$file" --model "$folder/model" --device "$2"
  quietly session feed "$file" "$folder/text1" --device "$2" --json "$folder/json"
  told "$folder/json" >"$numbers"
  quietly session mark "$file" here --device "$2"
  quietly session feed "$file" "$folder/text2" --flush --device "$3" --json "$folder/json"
  told "$folder/json" >>"$numbers"
  quietly session fork "$file" "$file.fork" --mark here --device "$3" --overwrite
  quietly session feed "$file.fork" "$folder/text3" --device "$3" --json "$folder/json"
  told "$folder/json" >>"$numbers"
  quietly session diff "$file" "$file.fork" --device "$3" --json "$folder/json"
  told "$folder/json" >>"$numbers"
  quietly session rollback "$file" here --device "$3"
  quietly session feed "$file" "$folder/text3" --device "$2" --json "$folder/json"
  told "$folder/json" >>"$numbers"
  "$program" session ask "$file" --prompt "The box" --tokens 24 --device "$2" >"$folder/$1.answer" 2>/dev/null
}

walk cpu cpu cpu
for pair in "floats cuda:f32 cuda:f32" "there cpu cuda:f32" "back cuda:f32 cpu"; do
  # shellcheck disable=SC2086
  walk $pair
  name=${pair%% *}
  agree "$folder/$name.numbers" "$folder/cpu.numbers"
  cmp "$folder/$name.answer" "$folder/cpu.answer"
done
walk bf16 cuda cuda # its own rounding; it must work
echo "in bf16 too"
