#!/usr/bin/env bash
# The main job on this machine: nodes, a training run, a killed node, a live restore, proof that nothing was lost.
# Installs and builds what is missing first. --help lists the options.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

"$root/tools/setup.sh"
"$root/tools/build.sh" release backstayd backstay backstay-example-trainer
PYTHONDONTWRITEBYTECODE=1 exec python3 "$root/tools/demo/quickstart.py" --bin "$root/build/release/bin" "$@"
