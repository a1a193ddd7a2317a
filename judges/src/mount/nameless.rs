//! Files without a name, access control lists, data and holes.

use super::mounted::{FORMATS, Mount, compiled, image, is_good};
use crate::judge::Finding;
use crate::place::Place;
use crate::program::run as program;

/// Script that sets lists and syncs their files. Only the list lets user 1234 in; the mode of a file restricts the list.
const LISTS: &str = r#"
set -e
cd "$1"
chmod 755 .
as() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
echo secret > file
chmod 600 file
if as cat file 2> /dev/null; then echo "user 1234 reads without a list"; exit 1; fi
setfacl -m u:1234:r file
test "$(as cat file)" = secret
cp -a file less
chmod 600 less
if as cat less 2> /dev/null; then echo "a list gives more than the mode"; exit 1; fi
mkdir dir
setfacl -d -m u:1234:rw dir
(umask 077; mkdir dir/below; echo inherited > dir/below/file)
test "$(as cat dir/below/file 2> /dev/null)" = ""
setfacl -m u:1234:x dir dir/below
test "$(as cat dir/below/file)" = inherited
setfacl -m u:1234:r,g:55:rw dir/below/file
setfacl -x g:55 dir/below/file
setfacl -b less
sync file less dir dir/below dir/below/file .
"#;

/// Command that shows the lists and a linked file.
const SHOWN: &str = r#"cd "$1"; getfacl -np file less dir dir/below dir/below/file; cat linked"#;

pub(super) fn judge(place: &Place) -> Finding {
    let check = compiled(place, "nameless", &[])?;
    for (format, options) in FORMATS.into_iter().flat_map(|format| [(format, ""), (format, "--write-back")]) {
        let named = |error: String| format!("{format} {options}: {error}");
        let image = image(place, format)?;
        let options = format!("--speed max --allow-other {options}");
        let mount = Mount::new(place, &image, &options)?;
        program(place, &[&check, &mount.dir]).map_err(named)?;
        program(place, &["sh", "-c", LISTS, "sh", &mount.dir]).map_err(named)?;
        let shown = |mount: &Mount<'_>| program(place, &["sh", "-c", SHOWN, "sh", &mount.dir]);
        let expected = shown(&mount).map_err(named)?;
        let count = |word: &str| expected.matches(word).count();
        if (count("user:1234:"), count("default:user:1234:"), count("content")) != (6, 2, 1) {
            return Err(named(format!("not the lists that were set: {expected}")));
        }
        mount.cut(place.seed())?;
        let same = |mount: &Mount<'_>, when: &str| match shown(mount).map_err(named)? {
            found if found == expected => Ok(()),
            found => Err(named(format!("{when}: {found}\nexpected: {expected}"))),
        };
        same(&mount, "after a cut")?;
        mount.unmount()?;
        is_good(place, format, &image)?;
        let mount = Mount::new(place, &image, &options)?;
        same(&mount, "after a new mount")?;
        mount.unmount()?;
    }
    Ok("two mounts of each format".into())
}
