#!/usr/bin/env bash
# SQLite's own tests with their files on a mount, and the same tests on this machine's file system: what fails only on the mount is ours.
#
# SOURCE is a tree of SQLite's sources (Debian: `apt-get source sqlite3`), BUILD a directory for its test program, which is made there
# if it is not yet (it needs tcl-dev, gcc and make), LOGS where what the tests say is kept. TESTS are files of its directory `test`. As
# the tests do not work as root, they run as nobody: SOURCE and BUILD have to be readable for all.

. "$(dirname "$0")/mount.sh"

TESTS=${TESTS:-veryquick.test crash.test crash2.test crash3.test crash4.test crash5.test crash6.test crash7.test crash8.test \
    walcrash.test walcrash2.test walcrash3.test walcrash4.test writecrash.test}
BESIDE=${BESIDE:-/var/tmp}
LOGS=${LOGS:-$WORK/logs}
SIZE=2GiB
SUM=0
OURS=0

built() {
    [ -n "${SOURCE:-}" ] && [ -n "${BUILD:-}" ] || die "SOURCE and BUILD are not set"
    SOURCE=$(realpath "$SOURCE")
    if [ ! -x "$BUILD/testfixture" ]; then
        mkdir -p "$BUILD"
        (
            cd "$BUILD"
            "$SOURCE/configure" --with-tcl="$(dirname "$(ls /usr/lib/tcl8*/tclConfig.sh | tail -1)")" CFLAGS='-O1 -w'
            # As it comes the test program does not sync. A mount is to be asked to.
            sed -i 's/-DSQLITE_NO_SYNC=1//' Makefile
            make testfixture
        ) > "$WORK/build.log" 2>&1 || die "no testfixture: $(tail -3 "$WORK/build.log")"
    fi
    BUILD=$(realpath "$BUILD")
}

# One file of tests in a new directory below $2; what it said is in $3.
tested() {
    local dir=$2/sqlite-tests
    rm -rf "$dir"
    mkdir "$dir"
    chown nobody "$dir"
    (
        cd "$dir"
        setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups "$BUILD/testfixture" "$SOURCE/test/$1"
    ) > "$3" 2>&1 || true
    rm -rf "$dir"
    grep -q 'errors out of' "$3" || die "$1 in $2 did not come to its end: $(tail -2 "$3")"
}

failures() {
    sed -n 's/^!Failures on these tests: //p' "$1" | tr ' ' '\n' | sort -u
}

trap swept EXIT
chmod 755 "$WORK"
mkdir -p "$MOUNT" "$LOGS"
built
"$WEIR" mkfs "$FORMAT" "$WORK/disk.img" --size "$SIZE" > /dev/null
mounted
for test in $TESTS; do
    here=$LOGS/${test%.test}.$FORMAT there=$LOGS/${test%.test}.beside
    tested "$test" "$MOUNT" "$here"
    [ -s "$there" ] && grep -q 'errors out of' "$there" || tested "$test" "$BESIDE" "$there"
    failures "$here" > "$WORK/here"
    failures "$there" > "$WORK/there"
    only=$(comm -23 "$WORK/here" "$WORK/there" | tr '\n' ' ')
    both=$(comm -12 "$WORK/here" "$WORK/there" | tr '\n' ' ')
    echo "$test: $(grep 'errors out of' "$here" | sed 's/ on .*//')${both:+, elsewhere, too: $both}${only:+, only on the mount: $only}"
    SUM=$((SUM + $(sed -n 's/.*errors out of \([0-9]*\) tests.*/\1/p' "$here" | head -1)))
    [ -z "$only" ] || OURS=1
done
unmounted
[ "$OURS" -eq 0 ] || die "$FORMAT: tests fail that do not elsewhere"
echo "$0: $SUM tests of SQLite on $FORMAT, none fails that does not elsewhere"
