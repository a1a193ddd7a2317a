#!/usr/bin/env bash
# RocksDB's db_bench with a sync for each write, on a mount whose power is cut: keys that it has reported are there.
#
# db_bench counts a write before it looks whether it has failed, so its last report may count one too many.

. "$(dirname "$0")/mount.sh"

DB=$MOUNT/rocks
FOUND=0

prepare() {
    mkdir "$DB"
}

# A new database for each cut, so that keys follow each other from 0.
begin() {
    rm -rf "$DB"
    db_bench --db="$DB" --benchmarks=fillseq --num=1000000 --sync=1 --threads=1 --value_size=400 --compression_type=none \
        --write_buffer_size=262144 --stats_interval=20 --stats_per_interval=0 > "$WORK/said" 2> "$WORK/errors" &
    LOAD=$!
}

said() {
    sed -n 's/.*thread 0: ([0-9]*,\([0-9]*\)) ops.*/\1/p' "$WORK/errors" | tail -1
}

before_cut() {
    SAID=$(said)
}

check() {
    local said
    said=$(said)
    [ "${said:-0}" -eq "${SAID:-0}" ] || said=$((said - 1))
    if [ ! -e "$DB/CURRENT" ]; then
        [ -z "$said" ] || die "cut $1: $said writes were reported, the database is gone"
        return 0
    fi
    ldb --db="$DB" checkconsistency > "$WORK/ldb" 2>&1 || die "cut $1: $(tail -3 "$WORK/ldb")"
    ldb --db="$DB" scan --no_value --key_hex > "$WORK/keys" 2> "$WORK/ldb" || die "cut $1: $(tail -3 "$WORK/ldb")"
    FOUND=$(wc -l < "$WORK/keys")
    [ "$FOUND" -ge "${said:-0}" ] || die "cut $1: $said writes were reported, $FOUND keys are there"
    REPORTED=$((${REPORTED:-0} + ${said:-0}))
}

summary() {
    echo "db_bench, $REPORTED synced writes reported, all are there"
}

main
