#!/usr/bin/env bash
# The main job on this machine: nodes, a training run, a killed node, a live restore, proof that nothing was lost.
# Installs and builds what is missing first. --help lists the options.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONDONTWRITEBYTECODE=1
demo=(python3 "$root/tools/demo/quickstart.py" --bin "$root/build/release/bin")

# Help and wrong options do not wait for a build.
if command -v python3 > /dev/null; then
  for option in "$@"; do
    case "$option" in -h | --help) exec "${demo[@]}" --help ;; esac
  done
  "${demo[@]}" --only-check-options "$@"
fi

"$root/tools/setup.sh"
"$root/tools/build.sh" release backstayd backstay backstay-example-trainer
exec "${demo[@]}" "$@"
