//! A programmer's daily work: a clone, a build, tests and a commit, on each format, with the power cut after it.
//!
//! The judge makes the projects: one in C with a Makefile, one in Rust without dependencies. Nothing comes from a network.

use super::mounted::{ALL_FORMATS, Mount, image, is_good};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run as program;

/// Script that makes a repository of both projects; `$1` is its directory.
const ORIGIN: &str = r#"
set -e
mkdir -p "$1/tree/c" "$1/tree/rust/src"
cd "$1/tree"
printf '/c/build/\n/rust/target/\n/rust/Cargo.lock\n' > .gitignore
for n in $(seq 30); do
  printf '#include "parts.h"\nlong part_%d(long x) { return x * %d + 1; }\n' "$n" "$n" > "c/part_$n.c"
done
for n in $(seq 30); do printf 'long part_%d(long x);\n' "$n"; done > c/parts.h
{
  printf '#include <stdio.h>\n#include "parts.h"\nint main(void) {\n  long sum = 0;\n'
  for n in $(seq 30); do printf '  sum += part_%d(2);\n' "$n"; done
  printf '  printf("%%ld\\n", sum);\n  return sum != 960;\n}\n'
} > c/main.c
cat > c/Makefile <<'EOF'
PARTS := $(patsubst %.c,build/%.o,$(wildcard *.c))
build/sum: $(PARTS)
	$(CC) -o $@ $^
build/%.o: %.c parts.h
	@mkdir -p build
	$(CC) -g -O1 -Wall -c -o $@ $<
test: build/sum
	test "$$(build/sum)" = 960
EOF
printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > rust/Cargo.toml
cat > rust/src/lib.rs <<'EOF'
pub fn sorted(words: &str) -> Vec<String> {
    let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    words.sort();
    words
}
#[test]
fn words_are_sorted() {
    assert_eq!(sorted("c a b"), ["a", "b", "c"]);
}
EOF
cat > rust/src/main.rs <<'EOF'
fn main() {
    println!("{}", small::sorted("to be or not to be").join(" "));
}
EOF
git init -q
git add -A
git -c user.name=judge -c user.email=judge@localhost commit -qm first
git clone -q --bare . "$1/origin.git"
"#;

/// Script that clones, builds, tests and commits; `$1` is the mount, `$2` the repository, `$3` is cargo. It syncs everything at the end.
const WORK: &str = r#"
set -ex
cd "$1"
git clone -q --bare "file://$2" origin.git
git clone -q "file://$1/origin.git" clone
cd clone
make -s -C c -j2 test
unset CARGO_TARGET_DIR
(cd rust && "$3" test --offline --quiet && "$3" build --offline --quiet --release)
test "$(rust/target/release/small)" = "be be not or to to"
test -z "$(git status --short)"
echo 'a line' >> c/README
git add -A
git -c user.name=judge -c user.email=judge@localhost commit -qm second
git push -q origin HEAD
git gc --quiet
cd "$1"
find . -type f -exec sync {} +
find . -type d -exec sync {} +
"#;

/// Script that checks that everything is as it was and works.
const AGAIN: &str = r#"
set -ex
cd "$1/clone"
git fsck --strict
git -C ../origin.git fsck --strict
test "$(git rev-parse HEAD)" = "$(git -C ../origin.git rev-parse HEAD)"
test "$(git log --format=%s | tr '\n' ' ')" = "second first "
test -z "$(git status --short)"
test "$(c/build/sum)" = 960
test "$(rust/target/release/small)" = "be be not or to to"
unset CARGO_TARGET_DIR
(cd rust && "$3" test --offline --quiet)
touch c/parts.h
make -s -C c -j2 test
"#;

pub(super) fn judge(place: &Place) -> Finding {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let origin = place.make_dir("origin")?;
    program(place, &["sh", "-c", ORIGIN, "sh", &origin])?;
    let origin = format!("{origin}/origin.git");
    for format in ALL_FORMATS {
        let found = || {
            let image = image(place, format)?;
            let mount = Mount::new(place, &image, "--speed max")?;
            let work = |what, mount: &Mount<'_>| {
                program(place, &["sh", "-c", what, "sh", &mount.dir, &origin, &cargo])
            };
            work(WORK, &mount)?;
            mount.cut(place.seed())?;
            work(AGAIN, &mount)?;
            mount.unmount()?;
            is_good(place, format, &image)?;
            let mount = Mount::new(place, &image, "--speed max")?;
            work(AGAIN, &mount)?;
            mount.unmount()?;
            is_good(place, format, &image)
        };
        found().map_err(|error: String| format!("{format}: {error}"))?;
    }
    Ok("one in C and one in Rust, each format, before and after a cut".into())
}
