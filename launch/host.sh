#!/usr/bin/env bash
# One host of a TPU slice: cloud_tpu.sh runs this there, over ssh. The training does not hang on the
# connection, and each verb may be repeated: gcloud repeats a command whose connection broke.
#   launch/host.sh setup             installs this checkout
#   launch/host.sh start OPTION ...  starts bertjax.train, unless it is running
#   launch/host.sh follow            shows its log until it ends
#   launch/host.sh code              prints the code that it ended with
#   launch/host.sh stop              lets it save and end
set -euo pipefail
cd "$(dirname "$0")/.."
python=~/venv/bin/python log=~/bertjax.log code=~/bertjax.code process=~/bertjax.pid

running() { [[ ! -e $code && -e $process ]] && kill -0 "$(<"$process")" 2>/dev/null; }

setup() {
  # The image's Python is 3.10; uv brings a newer one without root.
  [[ -x ~/.local/bin/uv ]] || curl -LsSf https://astral.sh/uv/install.sh | sh
  [[ -d ~/venv ]] || ~/.local/bin/uv venv --quiet --python 3.11 ~/venv
  ~/.local/bin/uv pip install --quiet --python "$python" -e '.[tpu]'
}

start() {
  ! running || return 0
  rm -f "$code"
  # The shell around the command outlives a SIGTERM to both, and writes the code.
  # shellcheck disable=SC2016
  setsid bash -c 'trap : TERM; "${@:2}"; echo $? > "$1.new"; mv "$1.new" "$1"' \
    bash "$code" "$python" -m bertjax.train --distributed "$@" > "$log" 2>&1 < /dev/null &
  echo $! > "$process"
}

follow() {
  # After its end there is nothing to wait for: tail -F might be killed before it has begun.
  running || { tail -n 1000 "$log" || true; return 0; }
  tail -n 1000 -F "$log" &
  while running; do sleep 5; done
  sleep 1 # for the last lines
  kill $!
}

code() { # A machine that was restarted in the middle has none: run me again.
  if [[ -e $code ]]; then cat "$code"; else echo 75; fi
}

stop() {
  ! running || kill -TERM -- "-$(<"$process")"
  for ((seconds = 0; seconds < 120; seconds++)); do
    running || return 0
    sleep 1
  done
}

case ${1:-} in
  setup | start | follow | code | stop) "$@" ;;
  *)
    echo "launch/host.sh: the verbs are setup, start, follow, code and stop; not ${1:-none}" >&2
    exit 2
    ;;
esac
