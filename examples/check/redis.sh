#!/bin/sh
# Stock Redis under `weir check`: with appendfsync always, what was acknowledged survives a power cut.
#
#   weir check --verify 'examples/check/redis.sh check {}' -- examples/check/redis.sh fill {} 5
#
# `fill DIR COUNT` prints the number of each key when Redis has acknowledged it. `check DIR` starts Redis on what a cut left, with its
# default options, and asks for the last key that was printed (standard input).
set -u
work=$(mktemp -d)
socket=$work/socket
trap 'kill "$server" 2> /dev/null; rm -rf "$work"' EXIT

ask() { redis-cli -s "$socket" "$@" 2> /dev/null; }

# Waits until it answers; fails if it ends instead.
started() {
    redis-server --port 0 --unixsocket "$socket" --dir "$1" --save '' --appendonly yes --appendfsync always > "$work/log" 2>&1 &
    server=$!
    while kill -0 "$server" 2> /dev/null; do
        [ "$(ask ping)" = PONG ] && return
        sleep 0.01
    done
    echo "Redis does not start: $(grep -o 'Bad file format.*aof\b' "$work/log" || tail -1 "$work/log")"
    exit 1
}

case $1 in
    fill)
        started "$2"
        for key in $(seq "$3"); do
            [ "$(ask set "key$key" "value$key")" = OK ] && echo "$key"
        done
        ask shutdown nosave
        wait "$server"
        ;;
    check)
        last=$(tail -1)
        started "$2"
        [ -z "$last" ] || [ "$(ask get "key$last")" = "value$last" ] || { echo "key$last was acknowledged and is gone"; exit 1; }
        ask shutdown nosave
        wait "$server"
        ;;
esac
