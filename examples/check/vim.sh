#!/bin/sh
# Stock vim under `weir check`: is the text there when vim has saved it, and is it never half of it?
#
#   weir check --setup 'examples/check/vim.sh init {}' --verify 'examples/check/vim.sh check {}' -- examples/check/vim.sh fill {} 3
#
# `fill DIR COUNT [SET]` saves versions of a text of 300 lines, and prints the number of each when vim has ended; SET are further options of vim,
# as in `nofsync` or `backupcopy=no`. `check DIR` asks for one whole version in the text or else in its backup, not older than the last that
# was printed (standard input). The mount may be below /tmp, where vim makes no backups by default: backupskip.
set -u

fail() { echo "$1"; exit 1; }

text() { yes "version $1" | head -n 300; }

case $1 in
    init) text 0 > "$2/text" ;;
    fill)
        for number in $(seq "$3"); do
            vim -es -u NONE -i NONE --cmd "set backupskip= ${4:-fsync}" -c "%s/version .*/version $number/" -c 'wq' "$2/text" || exit 1
            echo "$number"
        done
        ;;
    check)
        promised=$(tail -n 1)
        for place in text text~; do
            number=$(head -n 1 "$2/$place" 2> /dev/null | grep -o '[0-9]*$')
            [ -n "$number" ] && text "$number" | cmp -s - "$2/$place" && break
            number=
        done
        [ -n "$number" ] || fail "neither the text nor its backup is whole"
        [ "$number" -ge "${promised:-0}" ] || fail "version $promised was saved and is gone"
        ;;
esac
