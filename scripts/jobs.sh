#!/usr/bin/env bash
# Prints how many compilers may run at once: one per processor, but 1.5 GB of free memory for each.
set -euo pipefail

jobs=$(nproc 2>/dev/null || echo 1)

limit() {  # $1: bytes that may be used
  local fit=$(($1 / 1500000000))
  if ((fit < jobs)); then
    jobs=$fit
  fi
}

if [[ -r /proc/meminfo ]]; then
  limit "$(awk '/^MemAvailable:/ {printf "%.0f", $2 * 1024}' /proc/meminfo)"
fi
# Containers: the processor and memory of the host are not ours.
if [[ -r /sys/fs/cgroup/memory.max ]]; then
  most=$(</sys/fs/cgroup/memory.max)
  if [[ $most != max ]]; then
    limit "$most"
  fi
fi
echo $((jobs > 0 ? jobs : 1))
