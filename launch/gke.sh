#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster, as a JobSet that starts again when they are taken away:
#   launch/gke.sh NAME LOCATION MACHINE:TOPOLOGY CONFIG WORKDIR [option of bertjax.train ...]
#   CLUSTER=mine IMAGE=us-docker.pkg.dev/PROJECT/REPOSITORY/bertjax \
#     launch/gke.sh bert us-west4-a ct5lp-hightpu-4t:4x4 configs/bert_base.py gs://BUCKET/base \
#     --config.data.train_dir=gs://BUCKET/train_{max_seq_length}
# It builds IMAGE from the last commit, makes a pool of spot nodes for each slice, submits
# gke_jobset.yaml, follows its log, and deletes the pools at the end, well or badly. Run it again to
# come back to a training that goes on. The cluster has the JobSet controller (jobset.sigs.k8s.io, 0.10
# or newer), and kubectl and docker are logged in.
#   SLICES=4                    as many slices, which train one model together
#   ON_DEMAND=1                 no spot nodes: they cost more, and stay
#   NODE_LOCATION=us-west4-a    the zone of the TPUs, where LOCATION is a region
#   SERVICE_ACCOUNT=NAME        of Kubernetes, allowed to write to the bucket
#   KEEP=1                      leaves the pools up, and says so
#   DRY_RUN=1                   prints the commands
set -euo pipefail
source "$(dirname "$0")/steps.sh"

[[ $# -ge 5 && $3 == *-*t:*x* && $5 == gs://* && -n ${CLUSTER:-} && -n ${IMAGE:-} ]] || usage
cd "$(dirname "$0")/.."
machine=${3%:*} place=(--cluster="$CLUSTER" --location="$2")

# What gke_jobset.yaml asks for.
blanks=(NAME SLICES HOSTS CHIPS ACCELERATOR TOPOLOGY IMAGE SERVICE_ACCOUNT ARGUMENTS)
NAME=$1 TOPOLOGY=${3#*:} SLICES=${SLICES:-1} SERVICE_ACCOUNT=${SERVICE_ACCOUNT:-default}
CHIPS=${machine##*-} CHIPS=${CHIPS%t}
HOSTS=$((${TOPOLOGY//x/*} / CHIPS))
# shellcheck disable=SC2034 # one of the blanks
case $machine in # cloud.google.com/gke-tpu-accelerator of the nodes
  ct4p-*) ACCELERATOR=tpu-v4-podslice ;;
  ct5lp-*) ACCELERATOR=tpu-v5-lite-podslice ;;
  ct5p-*) ACCELERATOR=tpu-v5p-slice ;;
  ct6e-*) ACCELERATOR=tpu-v6e-slice ;;
  *)
    echo "the machine is $machine; those with TPUs are ct4p-, ct5lp-, ct5p- and ct6e-..." >&2
    exit 2
    ;;
esac
IMAGE=$IMAGE:$(git rev-parse --short HEAD)
ARGUMENTS=$(printf '%s\n' --config="$4" --workdir="$5" "${@:6}" |
  sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/"&"/' | paste -sd,)
ARGUMENTS="[$ARGUMENTS]"

mapfile -t pools < <(seq --format="$NAME-%g" 0 $((SLICES - 1)))
pool_options=(--machine-type="$machine" --num-nodes="$HOSTS" --node-labels=bertjax="$NAME")
[[ $HOSTS -eq 1 ]] || pool_options+=(--tpu-topology="$TOPOLOGY")
[[ -n ${ON_DEMAND:-} ]] || pool_options+=(--spot)
[[ -z ${NODE_LOCATION:-} ]] || pool_options+=(--node-locations="$NODE_LOCATION")

build() {
  run bash -c "git archive HEAD | docker build --file=launch/Dockerfile --tag=$IMAGE -" &&
    run docker push "$IMAGE"
}

is_there() { # "$2" where nobody is asked, or nobody answers
  local found
  [[ -z ${DRY_RUN:-} ]] || return "$2"
  found=$(gcloud container node-pools list "${place[@]}" --filter="name=$1" --format='value(name)') ||
    return "$2"
  [[ -n $found ]]
}

make_pools() {
  local pool
  for pool in "${pools[@]}"; do
    is_there "$pool" 1 ||
      run gcloud container node-pools create "$pool" "${place[@]}" "${pool_options[@]}" || {
      note "$pool was not made; the lines above say why (quota, capacity, a wrong machine)"
      return "$UNAVAILABLE"
    }
  done
}

delete_pools() {
  local pool status=0
  for pool in "${pools[@]}"; do
    ! is_there "$pool" 0 ||
      run gcloud container node-pools delete "$pool" "${place[@]}" --quiet || status=1
  done
  return "$status"
}

deletion() { # for people
  local pool
  for pool in "${pools[@]}"; do
    echo -n "gcloud container node-pools delete $pool ${place[*]} --quiet; "
  done
}

submit() {
  if [[ -n ${DRY_RUN:-} ]]; then
    echo "kubectl apply --filename=- <<'END'"
    filled_in
    echo END
  else
    filled_in | kubectl apply --filename=-
  fi
}
filled_in() {
  local text blank
  text=$(< launch/gke_jobset.yaml)
  for blank in "${blanks[@]}"; do text=${text//"\${$blank}"/"${!blank}"}; done
  echo "$text"
}

follow() { # shows the log of host 0 until the JobSet ends; returns 1 if it failed
  local state hosts="jobset.sigs.k8s.io/jobset-name=$NAME"
  local first="$hosts,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
  run kubectl logs --follow --tail=-1 --selector="$first" || true
  [[ -z ${DRY_RUN:-} ]] || return 0
  while true; do
    state=$(kubectl get jobset "$NAME" --ignore-not-found \
      --output=jsonpath='{.kind} {.status.terminalState}') || state="UNKNOWN "
    case $state in
      "JobSet Completed") return 0 ;;
      "JobSet Failed")
        kubectl logs --prefix --tail=20 --selector="$hosts" >&2 || true
        note "$NAME failed; to run it again would repeat that"
        return 1
        ;;
      "")
        note "somebody deleted the JobSet $NAME"
        return "$UNAVAILABLE"
        ;;
    esac
    note "$NAME: no log now; its hosts start, or were taken away"
    pause 20
    kubectl logs --follow --tail=-1 --selector="$first" || true
  done
}

leave() { # at every end: nothing that costs stays behind without a word
  local status=$?
  trap - EXIT
  trap 'note "wait: the nodes of $NAME are being deleted"' INT TERM
  # The pods have two minutes to save.
  run kubectl delete jobset "$NAME" --ignore-not-found --timeout=3m || true
  if [[ -n ${KEEP:-} ]]; then
    echo "the nodes of $NAME are still up, and costing. Delete them: $(deletion)" >&2
    exit "$status"
  fi
  give_back "the nodes of $NAME" "$(deletion)" delete_pools ||
    [[ $status -ne 0 ]] || status=$UNAVAILABLE
  exit "$status"
}

build
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
make_pools || exit
submit
follow
