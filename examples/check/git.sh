#!/bin/sh
# Stock git under `weir check`: is a commit there when git has returned?
#
#   weir check --setup 'examples/check/git.sh init {}' --verify 'examples/check/git.sh check {}' -- examples/check/git.sh fill {} 3
#
# `fill DIR COUNT [FSYNC]` commits versions of a file, and prints the number of each when git has returned; FSYNC is git's option
# core.fsync. `check DIR` removes the locks of a git that was cut off, as its user would, reads everything that the branch leads to, and asks
# for the last version that was printed (standard input).
set -u
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
cd "$2" || exit 1

fail() { echo "$1"; exit 1; }

case $1 in
    init)
        git init -q -b main .
        git config user.name someone
        git config user.email someone@example.com
        git config gc.auto 0
        echo "version 0" > file
        git add file
        git commit -qm "version 0"
        ;;
    fill)
        for number in $(seq "$3"); do
            echo "version $number" > file
            git -c core.fsync="${4:-default}" commit -qam "version $number" || exit 1
            echo "$number"
        done
        ;;
    check)
        promised=$(tail -n 1)
        find .git -name '*.lock' -delete
        last=$(git log -1 --format=%s 2>&1) || fail "the branch leads nowhere: $last"
        last=${last#version }
        git log -p > /dev/null 2> .git/said || fail "commit $last cannot be read: $(tail -n 1 .git/said)"
        [ "$last" -ge "${promised:-0}" ] || fail "commit $promised was there and is gone"
        git status > /dev/null 2> .git/said || fail "the index cannot be read: $(tail -n 1 .git/said)"
        ;;
esac
