#!/usr/bin/env bash
# MariaDB on a mount whose power is cut, under sysbench: transactions that a client was told of are there, and the tables are whole.
#
# ATOMIC=1: on a device with SHARE, where each write of a page is all or nothing, so that MariaDB does without its doublewrite buffer.
# It looks for a file /dev/fcta; while the script runs there is one, empty.

if [ -n "${ATOMIC:-}" ]; then OPTIONS=${OPTIONS:---speed max --device share-960evo}; fi

. "$(dirname "$0")/mount.sh"

DATA=$MOUNT/data
SOCKET=$WORK/sock
DAEMON=
NEXT=1
SIZE=2GiB # tables and logs

server() {
    local atomic=
    if [ -n "${ATOMIC:-}" ]; then
        [ -e /dev/fcta ] || { touch /dev/fcta && FCTA=made; }
        # Pages are written all the time, so that cuts find some under way.
        atomic=--innodb-max-dirty-pages-pct=0
    fi
    mariadbd --no-defaults --user=root --datadir="$DATA" --socket="$SOCKET" --skip-networking --skip-grant-tables \
        --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=64M --innodb-log-file-size=16M --sync-binlog=1 \
        --pid-file="$WORK/pid" --tmpdir="$WORK" $atomic > "$WORK/mariadb.log" 2>&1 &
    DAEMON=$!
    for _ in $(seq 600); do
        mariadb --no-defaults --socket="$SOCKET" -e 'select 1' > /dev/null 2>&1 && return
        kill -0 "$DAEMON" 2> /dev/null || die "mariadbd: $(tail -5 "$WORK/mariadb.log")"
        sleep 0.1
    done
    die "mariadbd does not answer: $(tail -5 "$WORK/mariadb.log")"
}

stop() {
    [ -z "${FCTA:-}" ] || rm -f /dev/fcta
    [ -n "$DAEMON" ] || return 0
    kill "$DAEMON" 2> /dev/null || true
    wait "$DAEMON" 2> /dev/null || true
    DAEMON=
}

ask() {
    mariadb --no-defaults --socket="$SOCKET" --batch --skip-column-names "$@"
}

load() {
    sysbench oltp_write_only --db-driver=mysql --mysql-socket="$SOCKET" --mysql-user=root --tables=2 --table-size=2000 "$@"
}

prepare() {
    mariadb-install-db --no-defaults --user=root --datadir="$DATA" --auth-root-authentication-method=normal --skip-test-db \
        > "$WORK/install.log" 2>&1 || die "mariadb-install-db: $(tail -5 "$WORK/install.log")"
    server
    ask -e 'create database sbtest; create table sbtest.said(id int primary key, text varchar(2000)) engine=innodb'
    load prepare > /dev/null
}

# Each insert is acknowledged by a line on the host's disk; four threads of sysbench work beside it.
begin() {
    # A table space that grew since the last checkpoint is opened by MariaDB's recovery without asking for atomic writes
    # (seen with 10.11.19): until the server starts anew its pages go through the doublewrite buffer.
    [ -z "${ATOMIC:-}" ] || stop
    [ -n "$DAEMON" ] || server
    load --threads=4 --time=60 --report-interval=0 run > "$WORK/sysbench.log" 2>&1 &
    SYSBENCH=$!
    for id in $(seq "$NEXT" $((NEXT + 100000))); do
        echo "insert into sbtest.said values($id, repeat('x', $((id % 2000)))); select $id;"
    done | mariadb --no-defaults --socket="$SOCKET" --batch --skip-column-names --unbuffered > "$WORK/said" 2> /dev/null &
    LOAD=$!
}

before_cut() {
    local written
    [ -n "${ATOMIC:-}" ] || return 0
    written=$(ask -e "show global status like 'Innodb_dblwr_pages_written'" | cut -f2)
    [ "$written" -eq 0 ] || die "MariaDB wrote $written pages to its doublewrite buffer"
}

check() {
    local said rows
    # What ran when the power went is dead or does not know it yet.
    [ -z "${SYSBENCH:-}" ] || { kill -9 "$SYSBENCH" 2> /dev/null || true; wait "$SYSBENCH" 2> /dev/null || true; }
    SYSBENCH=
    if [ -n "$DAEMON" ]; then kill -9 "$DAEMON" 2> /dev/null || true; wait "$DAEMON" 2> /dev/null || true; fi
    server
    said=$(tail -1 "$WORK/said")
    rows=$(ask -e 'select coalesce(max(id), 0), count(*) from sbtest.said')
    set -- "$1" $rows
    [ "$2" -eq "$3" ] || die "cut $1: $3 rows up to $2"
    [ "$2" -ge "${said:-0}" ] || die "cut $1: transaction $said was committed, the last one there is $2"
    ask -e 'check table sbtest.said, sbtest.sbtest1, sbtest.sbtest2 extended' | awk '$3 == "status" && $4 != "OK" || $3 == "error"' > "$WORK/check"
    [ ! -s "$WORK/check" ] || die "cut $1: $(head -3 "$WORK/check")"
    NEXT=$(($2 + 1))
}

summary() {
    echo "MariaDB under sysbench, $((NEXT - 1)) inserts, all that were acknowledged are there, the tables are whole"
}

main
