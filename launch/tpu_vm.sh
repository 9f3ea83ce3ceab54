#!/usr/bin/env bash
# Trains on a Cloud TPU VM slice of one or many hosts, made on demand:
#   launch/tpu_vm.sh NAME ZONE TYPE CONFIG WORKDIR [option of bertjax.train ...]
#   launch/tpu_vm.sh bert us-west4-a v5litepod-16 configs/bert_base.py gs://BUCKET/base \
#     --config.data.train_dir=gs://BUCKET/train_{max_seq_length}
# It makes the slice, installs this checkout (the last commit) on every host, trains, follows the log,
# starts again when the slice was taken away, and deletes the slice at the end, well or badly. Run it
# again to come back to a training that goes on. The workdir and the records must be gs://, for the
# disks of the hosts do not come back.
#   KEEP=1     leaves the slice up, and says so
#   DRY_RUN=1  prints the commands
set -euo pipefail
source "$(dirname "$0")/cloud_tpu.sh"

nodes=("$name")
deletion=(gcloud compute tpus tpu-vm delete "$name" --zone="$zone" --quiet)

state() {
  local found
  found=$(gcloud compute tpus tpu-vm list --zone="$zone" --filter="name ~ /$name\$" \
    --format='value(state)') || found=UNKNOWN
  case ${found:-NONE} in
    PREEMPTED | TERMINATED | STOPPED) echo GONE ;;
    NONE | READY | UNKNOWN) echo "${found:-NONE}" ;;
    *) echo WAITING ;; # CREATING, DELETING, REPAIRING ...
  esac
}

create() {
  run gcloud compute tpus tpu-vm create "$name" --zone="$zone" --accelerator-type="$type" \
    --version="$runtime"
}

is_queued() {
  gcloud compute tpus queued-resources list --zone="$zone" --filter="name ~ /$name\$" \
    --format='value(name)' | grep -q .
}

if [[ -z ${DRY_RUN:-} ]] && is_queued; then # On demand it would cost more, outside the queue.
  echo "$name is in the queue, and a slice from the queue is not made on demand: use" \
    "launch/queued_resource.sh" >&2
  exit "$UNAVAILABLE"
fi
train_to_the_end
