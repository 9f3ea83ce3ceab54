#!/usr/bin/env bash
# Trains on a Cloud TPU VM slice of one or many hosts: makes the slice if it is not there, installs
# this checkout (the last commit) on every host and runs the same command on all of them.
#   launch/tpu_vm.sh NAME ZONE TYPE CONFIG WORKDIR [option of bertjax.train ...]
#   launch/tpu_vm.sh bert us-west4-a v5litepod-16 configs/bert_base.py gs://BUCKET/base \
#     --config.data.train_dir=gs://BUCKET/train_{max_seq_length}
# A slice that came from the queue is not made again: that is for queued_resource.sh.
# Run it again to resume. It leaves the slice up, and costing; to end that:
#   gcloud compute tpus tpu-vm delete NAME --zone=ZONE
set -euo pipefail

if [[ $# -lt 5 ]]; then
  sed -n '2,9s/^# //p' "$0" >&2
  exit 2
fi
name=$1 zone=$2 type=$3 config=$4 workdir=$5
shift 5
cd "$(dirname "$0")/.."

runtime_version() { # of docs.cloud.google.com/tpu/docs/runtimes
  case $1 in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}
tpu() { gcloud compute tpus tpu-vm "$@" --zone="$zone"; }
everywhere() { tpu ssh "$name" --worker=all --command="$1"; }

if ! tpu describe "$name" >/dev/null 2>&1; then
  # A slice from the queue was taken away. On demand it would cost more, outside the queue.
  queued=$(gcloud compute tpus queued-resources list --zone="$zone" \
    --filter="name ~ /$name\$" --format='value(name)')
  if [[ -n $queued || -n ${TPU_VM_MUST_EXIST:-} ]]; then
    echo "$name is not there, and a slice from the queue is not made on demand: use" \
      "launch/queued_resource.sh" >&2
    exit 69
  fi
  tpu create "$name" --accelerator-type="$type" --version="$(runtime_version "$type")"
fi

archive=$(mktemp -d)/bertjax.tar.gz
git archive --format=tar.gz --output="$archive" HEAD
tpu scp "$archive" "$name:bertjax.tar.gz" --worker=all

# The image's Python is 3.10; uv brings a newer one without root.
everywhere 'set -e
mkdir -p bertjax && tar -xzf bertjax.tar.gz -C bertjax
[ -x ~/.local/bin/uv ] || curl -LsSf https://astral.sh/uv/install.sh | sh
[ -d venv ] || ~/.local/bin/uv venv --quiet --python 3.11 venv
~/.local/bin/uv pip install --quiet --python venv/bin/python -e "bertjax[tpu]"'

command=(../venv/bin/python -m bertjax.train --distributed --config="$config" --workdir="$workdir")
everywhere "cd bertjax && $(printf '%q ' "${command[@]}" "$@")"
