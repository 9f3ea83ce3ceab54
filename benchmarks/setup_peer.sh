#!/usr/bin/env bash
# Makes the virtual environment of the peers that train_step.py, tpu_step.py and gpu_step.py measure
# ours against:
#   benchmarks/setup_peer.sh DIR
#   DIR/bin/python benchmarks/peer_step.py --framework=flax
# transformers 4.57 is the last release line with Flax models. It must not share an environment
# with bertjax: it holds huggingface_hub and tokenizers back. Versions are pinned, so that a ratio
# measured next year means the same. libtpu, which compiles for TPUs that are not there, is the one
# that jax[tpu] 0.10.2 asks for.
set -euo pipefail

if [[ $# -ne 1 ]]; then
  echo "usage: $0 DIR   (a directory for the new virtual environment)" >&2
  exit 2
fi
directory=$1
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "$python is older than Python 3.11; set PYTHON to a newer one" >&2
  exit 2
}

# PyPI's torch for Linux carries CUDA (gigabytes); TORCH_INDEX=https://download.pytorch.org/whl/cpu
# asks for the small one where that host can be reached.
torch_index=()
if [[ -n ${TORCH_INDEX:-} ]]; then
  torch_index=(--index-url "$TORCH_INDEX")
fi

"$python" -m venv "$directory"
"$directory/bin/pip" install --quiet ${torch_index[@]+"${torch_index[@]}"} torch==2.13.0
"$directory/bin/pip" install --quiet \
  transformers==4.57.6 jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 optax==0.2.8 "numpy>=2,<3" \
  "libtpu==0.0.42.*"

"$directory/bin/python" - <<'PYTHON'
from importlib import metadata

names = ("torch", "transformers", "jax", "jaxlib", "flax", "optax", "numpy", "libtpu")
print("peer environment:", ", ".join(f"{name} {metadata.version(name)}" for name in names))
PYTHON
