#!/usr/bin/env bash
# Trains on spot slices that wait in the queue, and starts over each time they are taken away:
#   launch/queued_resource.sh NAME ZONE TYPE CONFIG WORKDIR [option of bertjax.train ...]
#   launch/queued_resource.sh bert us-west4-a v5litepod-16 configs/bert_base.py gs://BUCKET/base \
#     --config.data.train_dir=gs://BUCKET/train_{max_seq_length}
# It waits for the slices, installs this checkout (the last commit) on every host, trains, follows the
# log, and deletes the slices at the end, well or badly. Leave it running in a terminal that lasts
# (tmux): without it nothing asks for new slices. Run it again to come back to a training that goes on.
# The workdir and the records must be gs://, for the disks of the hosts do not come back.
#   SLICES=4     as many slices, which train one model together
#   ON_DEMAND=1  no spot slices: they cost more, and stay
#   KEEP=1       leaves the slices up, and says so
#   DRY_RUN=1    prints the commands
set -euo pipefail
source "$(dirname "$0")/cloud_tpu.sh"

slices=${SLICES:-1}
if [[ $slices -eq 1 ]]; then
  nodes=("$name")
  wanted=(--node-id="$name")
else
  mapfile -t nodes < <(seq --format="$name-%g" 0 $((slices - 1)))
  wanted=(--node-count="$slices" --node-prefix="$name")
fi
[[ -n ${ON_DEMAND:-} ]] || wanted+=(--spot)
deletion=(gcloud compute tpus queued-resources delete "$name" --zone="$zone" --force --quiet)

state() {
  local found
  found=$(gcloud compute tpus queued-resources list --zone="$zone" --filter="name ~ /$name\$" \
    --format='value(state.state)') || found=UNKNOWN
  case ${found:-NONE} in
    ACTIVE) echo READY ;;
    SUSPENDED) echo GONE ;;
    FAILED)
      gcloud compute tpus queued-resources describe "$name" --zone="$zone" \
        --format='yaml(state)' >&2 || true
      echo FAILED
      ;;
    NONE | UNKNOWN) echo "${found:-NONE}" ;;
    *) echo WAITING ;; # WAITING_FOR_RESOURCES, PROVISIONING, SUSPENDING, DELETING ...
  esac
}

create() {
  run gcloud compute tpus queued-resources create "$name" --zone="$zone" "${wanted[@]}" \
    --accelerator-type="$type" --runtime-version="$runtime" --async
}

train_to_the_end
