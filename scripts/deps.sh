#!/usr/bin/env bash
# Makes sure that the Debian packages for a step are there, and installs them if that needs no password.
#   scripts/deps.sh [build|test|sanitize|kernels|format|lint|cuda]
# FWPKM_DEPS=off skips the check, for those who have the libraries from elsewhere. FWPKM_BROWSER=off does without the
# browser, as the tests then do.
set -euo pipefail

step=${1:-build}
# Tools count as present if they can be called, wherever they came from: "command=package"; of "a|b=package" one will do.
case $step in
  build)
    tools=("g++=g++" cmake=cmake ninja=ninja-build)
    # dnnl's CMake package needs the OpenCL headers and library, though nothing here uses them.
    libraries=(libdnnl-dev ocl-icd-opencl-dev libhwy-dev libcli11-dev libfmt-dev
      nlohmann-json3-dev libgtest-dev libsentencepiece-dev zlib1g-dev libzstd-dev)
    ;;
  # A browser without windows, in which the tests open report pages.
  test) tools=("chromium-headless-shell|chromium=chromium-headless-shell") libraries=() ;;
  # clang for its fuzzer, which GCC has not; the OpenMP library has to be clang's, too.
  sanitize) tools=("clang++=clang") libraries=(libclang-rt-dev libomp-dev) ;;
  # Fibers that stand for the threads of a GPU.
  kernels) tools=() libraries=(libboost-context-dev) ;;
  format) tools=(clang-format=clang-format) libraries=() ;;
  lint) tools=(run-clang-tidy=clang-tidy) libraries=() ;;
  cuda)
    # Debian's own is older than what our kernels are written in, so this one is not installed.
    if command -v nvcc >/dev/null; then
      exit 0
    fi
    echo "[deps] nvcc is not on the PATH; GPU kernels need NVIDIA's CUDA toolkit 12.8 or later" >&2
    exit 1
    ;;
  *)
    echo "[deps] step '$step' is unknown; use build, test, sanitize, kernels, format, lint or cuda" >&2
    exit 2
    ;;
esac

if [[ ${FWPKM_DEPS:-} == off || ($step == test && ${FWPKM_BROWSER:-} == off) ]]; then
  exit 0
fi

missing=()
for tool in "${tools[@]}"; do
  found=
  IFS='|' read -ra names <<<"${tool%%=*}"
  for name in "${names[@]}"; do
    found+=$(command -v "$name" || true)
  done
  if [[ ! $found ]]; then
    missing+=("${tool#*=}")
  fi
done

if ! command -v dpkg-query >/dev/null; then
  if [[ $step == build ]]; then
    echo "[deps] not a Debian system: going on in the hope that these are installed: a C++20 compiler" \
      "with OpenMP, CMake 3.22, Ninja, oneDNN 2, Highway 1, CLI11, fmt, nlohmann-json, GoogleTest," \
      "SentencePiece, zlib, zstd" >&2
  elif ((${#missing[@]})); then
    echo "[deps] not found: ${missing[*]}; install it with your package manager" >&2
    exit 1
  fi
  exit 0
fi

if ((${#libraries[@]})); then
  # dpkg-query fails where it does not know a name; what it does not list as installed is missing.
  installed=" $(dpkg-query -W -f '${Package}=${db:Status-Status} ' "${libraries[@]}" 2>/dev/null || true)"
  for library in "${libraries[@]}"; do
    if [[ $installed != *" $library=installed "* ]]; then
      missing+=("$library")
    fi
  done
fi
if ((!${#missing[@]})); then
  exit 0
fi

install=(apt-get install -y --no-install-recommends "${missing[@]}")
root=()
if ((EUID)); then
  if ! { command -v sudo && sudo -n true; } >/dev/null 2>&1; then
    echo "[deps] missing packages: ${missing[*]}; install them with" >&2
    echo "  sudo apt-get update && sudo ${install[*]}" >&2
    echo "or set FWPKM_DEPS=off if the libraries are installed in another way" >&2
    exit 1
  fi
  root=(sudo -n)
fi

echo "[deps] installing ${missing[*]}" >&2
root+=(env DEBIAN_FRONTEND=noninteractive)
if "${install[@]}" --simulate >/dev/null 2>&1 && "${root[@]}" "${install[@]}"; then
  exit 0
fi
# No package lists yet, or lists that are too old.
"${root[@]}" apt-get update
"${root[@]}" "${install[@]}"
