#!/usr/bin/env bash
# Stock sqlite3 on a mount whose power is cut: every transaction that sqlite3 has acknowledged is there, and the database is whole.
#
# JOURNAL is delete, truncate, persist or wal. Deleting a journal is only durable with synchronous=EXTRA, as SQLite says. SQLite takes
# it for durable, too, if it cannot open the directory to sync it, which is so when the power has just gone: then only what was
# acknowledged before the cut counts.

. "$(dirname "$0")/mount.sh"

JOURNAL=${JOURNAL:-wal}
DB=$MOUNT/test.db
SYNC=full
[ "$JOURNAL" != delete ] || SYNC=extra
NEXT=1

prepare() {
    sqlite3 "$DB" "pragma journal_mode=$JOURNAL; pragma synchronous=$SYNC; create table t(id integer primary key, text);" > /dev/null
}

# Each commit is acknowledged by a line on the host's disk.
transactions() {
    echo "pragma synchronous=$SYNC; pragma journal_mode=$JOURNAL;"
    for id in $(seq "$NEXT" $((NEXT + 100000))); do
        echo "begin; insert into t values($id, hex(randomblob($((id % 700))))); update t set text=text||'x' where id=$((id - 3)); commit;"
        echo "select 'committed', $id;"
    done
}

begin() {
    transactions | sqlite3 -bail "$DB" > "$WORK/said" 2> "$WORK/errors" &
    LOAD=$!
}

said() {
    sed -n 's/^committed|//p' "$WORK/said" | tail -1
}

before_cut() {
    SAID=$(said)
}

check() {
    local said rows
    [ "$(sqlite3 "$DB" 'pragma integrity_check')" = ok ] || die "cut $1: $(sqlite3 "$DB" 'pragma integrity_check' | head -3)"
    said=$(said)
    [ "$JOURNAL" != delete ] || said=$SAID
    rows=$(sqlite3 "$DB" 'select coalesce(max(id), 0), count(*) from t' | tr '|' ' ')
    set -- "$1" $rows
    [ "$2" -eq "$3" ] || die "cut $1: $3 rows up to $2"
    [ "$2" -ge "${said:-0}" ] || die "cut $1: transaction $said was committed, the last one there is $2"
    NEXT=$(($2 + 1))
}

summary() {
    echo "sqlite3 with journal_mode=$JOURNAL, $((NEXT - 1)) transactions, all that were acknowledged are there"
}

main
