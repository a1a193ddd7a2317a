#!/bin/sh
# The state of redis#5177 on Linux's own ext4: zero bytes at the end of the append-only file, and Redis does not start.
# As root; needs redis-server, strace, nbdfuse (libnbd-bin), and WEIR or `weir` in PATH. Takes about 40 seconds.
set -eu
weir=${WEIR:-weir}
work=$(mktemp -d)
disk=$work/disk.sock
loop=
redis() { exec redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work/fs" --save '' --appendonly yes --appendfsync always; }
swept() {
    kill -9 $(jobs -p) 2> /dev/null || true
    umount -l "$work/fs" 2> /dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" 2> /dev/null || true
    umount -l "$work/nbd" 2> /dev/null || true
    rm -rf "$work"
}
trap swept EXIT
mkdir "$work/nbd" "$work/fs"

attached() {
    nbdfuse "$work/nbd" "nbd+unix:///?socket=$disk" &
    until [ -s "$work/nbd/nbd" ]; do sleep 0.1; done
    loop=$(losetup --show -f --sizelimit 536870912 "$work/nbd/nbd")
}

"$weir" serve consumer-tlc-nvme --unix "$disk" --speed max > "$work/serve.log" 2>&1 &
until [ -S "$disk" ]; do sleep 0.1; done
attached
mkfs.ext4 -q "$loop"
mount "$loop" "$work/fs"

redis > "$work/redis.log" 2>&1 &
server=$!
until redis-cli -s "$work/redis.sock" ping > /dev/null 2>&1; do sleep 0.1; done
for key in 1 2 3; do redis-cli -s "$work/redis.sock" set "key$key" "value$key" > /dev/null; done
sync "$work/fs"

# Redis writes the record of the next key, and is held before it syncs. Meanwhile the journal commits, as it does every five seconds.
strace -qq -f -o "$work/strace.log" -e trace=fdatasync -e inject=fdatasync:delay_enter=30000000 -p "$server" &
tracer=$!
sleep 0.5
timeout 8 redis-cli -s "$work/redis.sock" set key4 value4 || true

# The power goes, and stays away until Linux has given up what it still wanted to write.
"$weir" cut "$disk" --eio --off 15s > /dev/null &
cut=$!
sleep 1
kill -9 "$tracer" "$server" || true
sleep 0.5
umount "$work/fs" || umount -l "$work/fs"
losetup -d "$loop"
umount "$work/nbd" || umount -l "$work/nbd"
wait "$cut" || true
sleep 16

attached
mount "$loop" "$work/fs"
dmesg 2> /dev/null | grep -o 'EXT4-fs.*ordered data mode' | tail -1
od -A d -c "$work"/fs/appendonlydir/*.incr.aof | tail -4
if (redis) > "$work/again.log" 2>&1 & again=$!; sleep 3; kill -0 "$again" 2> /dev/null; then
    echo "Redis starts: the journal did not commit in between, try again"
    exit 1
fi
grep -o 'Bad file format.*' "$work/again.log"
