#!/bin/sh
# The entry point of the image: `server` (an owner), `trainer`, or any other command. It replaces this process, so that
# it receives signals.
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
