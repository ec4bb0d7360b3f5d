#!/bin/sh
# What the image is to be: `server` (an owner), `trainer`, or any other command. Each takes this process over, so that
# signals reach it.
set -eu

case "${1:-server}" in
  server)
    [ "$#" -eq 0 ] || shift
    exec ps-service serve "$@"
    ;;
  trainer)
    shift
    exec python -m examples.digits.cluster "$@"
    ;;
  *)
    exec "$@"
    ;;
esac
