#!/usr/bin/env bash
# Configures and builds a preset, quietly: a counter on a terminal, one line elsewhere, everything when it fails.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

if [ $# -lt 1 ]; then
  echo "usage: $(basename "$0") PRESET [TARGET ...]" >&2
  exit 2
fi
preset="$1"
shift

build="$root/build/$preset"
mkdir -p "$build"
log="$build/build.log"

# As many compilers as there are processors, and no more than memory holds: gRPC's headers take one up to 1.2 GiB.
jobs="$(nproc)"
available_kib="$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)"
by_memory=$((available_kib / (1200 * 1024)))
if [ "$by_memory" -lt 1 ]; then by_memory=1; fi
if [ "$jobs" -gt "$by_memory" ]; then jobs="$by_memory"; fi

fail() {
  cat "$log" >&2
  echo "build: $1" >&2
  exit 1
}

(cd "$root" && cmake --preset "$preset") > "$log" 2>&1 || fail "could not configure"
if ninja -C "$build" -n "$@" 2> /dev/null | grep -q 'no work to do'; then exit 0; fi
echo "building (preset $preset, $jobs at a time)"
if [ -t 1 ]; then
  # Ninja's own counter, on one line.
  ninja -C "$build" -j "$jobs" "$@" 2>&1 | tee "$log" | while IFS= read -r line; do
    case "$line" in \[*) printf '\r\033[K%.*s' "${COLUMNS:-100}" "$line" ;; esac
  done || { printf '\r\033[K'; fail "could not build"; }
  printf '\r\033[K'
else
  ninja -C "$build" -j "$jobs" "$@" > "$log" 2>&1 || fail "could not build"
fi
