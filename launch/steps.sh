# shellcheck shell=bash
# What all ways share; their scripts source it.

# shellcheck disable=SC2034
AGAIN=75 # of bertjax.train: it saved; run the same command again
# shellcheck disable=SC2034
UNAVAILABLE=69 # of sysexits.h: no machine could be had, or one could not be given back

usage() { # the comment at the top of the script
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

note() { echo "$(date +%T) $*" >&2; }

# Runs a command. With DRY_RUN=1 it prints the command only: a dry run asks nobody, changes nothing,
# and goes as if nothing came in between.
run() {
  if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "$@" | sed 's/ $/\n/'
  else
    "$@"
  fi
}

pause() { [[ -n ${DRY_RUN:-} ]] || sleep "$1"; }

# Runs function "$3", which deletes "$1"; people are told to do "$2" where it fails three times.
give_back() {
  local try
  for try in 1 2 3; do
    ! "$3" || return 0
    note "$1 could not be deleted, try $try of 3"
    pause 30
  done
  echo "MAY STILL BE UP, AND COSTING: $1. Delete it: $2" >&2
  return "$UNAVAILABLE"
}
