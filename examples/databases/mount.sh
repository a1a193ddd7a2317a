# For the scripts beside this file: a file system of Flashweir under a database, and its power switch.
#
# Settings: WEIR (the program, else the one in PATH), FORMAT (ext4 or f2fs), OPTIONS (of `weir mount`), CUTS (how many), SEED.
# A script defines `begin` (a load that runs until the power goes, and leaves its process in LOAD), `check` (what has to be true
# afterwards; the cut's number is its argument), `prepare`, `summary`, and may define `before_cut` and `stop`; then it calls `main`.

set -euo pipefail

WEIR=${WEIR:-weir}
FORMAT=${FORMAT:-ext4}
OPTIONS=${OPTIONS:---speed max}
CUTS=${CUTS:-3}
SEED=${SEED:-$$}
SIZE=${SIZE:-1GiB}

WORK=$(mktemp -d)
MOUNT=$WORK/mnt
CONTROL=$WORK/control
LOAD=

die() {
    echo "$0: $*" >&2
    exit 1
}

# Milliseconds, of 100 to 900, that follow from the seed and a number.
pause_of() {
    echo $((100 + (SEED * 7919 + $1 * 104729) % 800))
}

mounted() {
    # shellcheck disable=SC2086 # the options are words
    : > "$WORK/weir.log"
    "$WEIR" mount "$WORK/disk.img" "$MOUNT" --control "$CONTROL" $OPTIONS > "$WORK/weir.log" 2>&1 &
    SERVER=$!
    for _ in $(seq 600); do
        grep -q '^control' "$WORK/weir.log" && return
        kill -0 "$SERVER" 2> /dev/null || die "weir mount: $(cat "$WORK/weir.log")"
        sleep 0.05
    done
    die "weir mount says nothing for half a minute"
}

unmounted() {
    umount "$MOUNT"
    wait "$SERVER" || die "weir mount: $(cat "$WORK/weir.log")"
    "$WEIR" fsck "$WORK/disk.img" > /dev/null
    case $FORMAT in
        ext4) e2fsck -fn "$WORK/disk.img" > "$WORK/fsck.log" 2>&1 || die "e2fsck: $(tail -5 "$WORK/fsck.log")" ;;
        f2fs) fsck.f2fs --dry-run "$WORK/disk.img" > "$WORK/fsck.log" 2>&1 || die "fsck.f2fs: $(tail -5 "$WORK/fsck.log")" ;;
    esac
}

# Ends whatever is left, also after an error.
swept() {
    local status=$?
    trap - EXIT
    [ -z "$LOAD" ] || kill -9 "$LOAD" 2> /dev/null || true
    declare -F stop > /dev/null && stop
    if mountpoint -q "$MOUNT"; then umount -l "$MOUNT"; fi
    wait 2> /dev/null || true
    rm -rf "$WORK"
    exit "$status"
}

main() {
    trap swept EXIT
    mkdir "$MOUNT"
    "$WEIR" mkfs "$FORMAT" "$WORK/disk.img" --size "$SIZE" > /dev/null
    mounted
    prepare
    for cut in $(seq "$CUTS"); do
        begin "$cut"
        sleep "0.$(printf '%03d' "$(pause_of "$cut")")"
        if declare -F before_cut > /dev/null; then before_cut; fi
        "$WEIR" cut "$CONTROL" --seed $((SEED + cut)) > /dev/null
        wait "$LOAD" 2> /dev/null || true
        LOAD=
        check "$cut"
    done
    declare -F stop > /dev/null && stop
    unmounted
    mounted
    check last
    declare -F stop > /dev/null && stop
    unmounted
    echo "$0: $CUTS power cuts on $FORMAT: $(summary)"
}
