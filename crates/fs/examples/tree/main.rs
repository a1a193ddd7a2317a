//! Fills a mounted file system with everything that F2FS or ext4 store in a way of their own, and lists what a tree holds:
//! one mounted by a kernel, or one in an image as this project reads it. Two lists that are equal are two equal trees.
//!
//! `cargo xtask f2fs-judges` runs it, inside of User-Mode Linux and outside, `cargo xtask ext4-judges` outside only.
//!
//! ```text
//! tree fill DIR SEED        makes directories, files, links, devices, attributes
//! tree churn DIR SEED       removes, renames, cuts, overwrites a part of them
//! tree write IMAGE SEED     makes and changes a tree in an image of either format, as this project writes it
//! tree sync DIR SEED        changes files and syncs each of them, then changes others
//! tree sync-image IMAGE SEED cut|unmount [data=journal]   the same in an image, which is then left as it is or unmounted
//! tree recover IMAGE        mounts an image for writing, and unmounts it
//! tree list DIR             one line for each name, by system calls
//! tree list-image IMAGE     the same from an image of either format
//! tree encode IMAGE          decodes all structures of an ext4 image and encodes them again
//! tree replay IMAGE          writes what the log of an ext4 image holds to its places
//! tree replayed IMAGE [COPY] what the log of an ext4 image holds, and whether the copy has it
//! ```

mod encode;
mod image;

use flashweir_core::random::mix;
use flashweir_core::{Executor, Instant};
use flashweir_fs::ext4::{self, Ext4, Ext4Options, Journaling};
use flashweir_fs::f2fs::F2fs;
use flashweir_fs::format::Kind;
use flashweir_fs::port::{Image, block_on};
use flashweir_fs::vfs::{
    Acl, AclEntry, AclKind, Creds, Errno, Follow, Fs, MountOptions, OpenFlags, Process, RenameMode, Source,
    SyncKind, Vfs, Who, XattrMode,
};
use rustix::fs::{self as sys, AtFlags, CWD, FileType, Mode, SeekFrom, XattrFlags};
use std::cell::Cell;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

type Outcome = Result<(), Box<dyn Error>>;
/// Names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

const BLOCK: u64 = 4096;
/// Names in the large directory.
const NAMES: u64 = 3000;
/// Directories in each other.
const DEPTH: u32 = 70;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut lines = Vec::new();
    match args.as_slice() {
        ["fill", dir, seed] => return fill(Path::new(dir), seed.parse()?),
        ["churn", dir, seed] => return churn(Path::new(dir), seed.parse()?),
        ["write", image, seed] => return write(Path::new(image), seed.parse()?),
        ["sync", dir, seed] => return sync(Path::new(dir), seed.parse()?),
        ["sync-image", image, seed, end @ ("cut" | "unmount")] => {
            return sync_image(Path::new(image), seed.parse()?, *end == "cut", Journaling::Ordered);
        }
        ["sync-image", image, seed, "cut", "data=journal"] => {
            return sync_image(Path::new(image), seed.parse()?, true, Journaling::Journal);
        }
        ["recover", image] => return recover(Path::new(image)),
        ["encode", image] => return encode::encode(Path::new(image)),
        ["replay", image] => return image::replay(Path::new(image)),
        ["replayed", image] => return image::replayed(Path::new(image), None),
        ["replayed", image, copy] => return image::replayed(Path::new(image), Some(Path::new(copy))),
        ["list", dir] => list(Path::new(dir), &mut lines)?,
        ["list-image", image] => image::list(Path::new(image), &mut lines)?,
        _ => {
            return Err("expected fill DIR SEED, churn DIR SEED, write IMAGE SEED, sync DIR SEED, \
                 sync-image IMAGE SEED cut|unmount [data=journal], recover IMAGE, list DIR, list-image IMAGE, encode IMAGE, replay IMAGE or replayed IMAGE [COPY]"
                .into());
        }
    }
    lines.sort_unstable();
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

/// Numbers that look random, and are the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let words = (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(count).collect()
    }
}

fn many_name(number: u64) -> String {
    let length = 1 + mix(number) % 40 + if number.is_multiple_of(50) { 200 } else { 0 };
    format!("{number:05}-{}", "n".repeat(length as usize))
}

fn fill(dir: &Path, seed: u64) -> Outcome {
    let mut random = Random(mix(seed));
    // A directory with several levels of hash table, of small files.
    let many = dir.join("many");
    fs::create_dir(&many)?;
    for number in 0..NAMES {
        let length = if number % 7 == 0 { 0 } else { random.below(200) };
        fs::write(many.join(many_name(number)), random.bytes(length as usize))?;
    }
    // Names of bytes that are no text.
    let odd = dir.join("odd");
    fs::create_dir(&odd)?;
    for byte in (1..=255).filter(|byte| *byte != b'/' && *byte != b'.') {
        File::create(odd.join(std::ffi::OsString::from_vec(vec![byte; usize::from(byte)])))?;
    }
    let mut deep = dir.join("deep");
    for level in 0..DEPTH {
        fs::create_dir(&deep)?;
        fs::write(deep.join("here"), format!("level {level}\n"))?;
        deep.push(format!("{level}"));
    }
    // Around the limits of what an inode holds, and of a block.
    for length in
        [0, 1, 59, 60, 61, 150, 160, 200, 3487, 3488, 3489, 3687, 3688, 3689, 4095, 4096, 4097, 8192, 100_000]
    {
        fs::write(dir.join(format!("size-{length}")), random.bytes(length))?;
    }
    // Direct and indirect nodes.
    let mut big = File::create(dir.join("big"))?;
    for _ in 0..24 {
        big.write_all(&random.bytes(1 << 20))?;
    }
    sparse(&dir.join("sparse"), &mut random)?;
    combed(&dir.join("combed"), &mut random)?;
    // Links and attributes have to fit into a block of the file system.
    let block = fs::metadata(dir)?.blksize();
    for (name, length) in [("short", 8), ("fast", 59), ("slow", 60), ("long", 3000), ("longest", 4000)] {
        symlink("x".repeat((length * block / BLOCK).max(length.min(60)) as usize), dir.join(name))?;
    }
    fs::write(dir.join("linked"), b"many names")?;
    fs::create_dir(dir.join("links"))?;
    for number in 0..40 {
        fs::hard_link(dir.join("linked"), dir.join("links").join(format!("{number}")))?;
    }
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("character", FileType::CharacterDevice, sys::makedev(5, 7)),
        ("block", FileType::BlockDevice, sys::makedev(259, 70_000)),
    ] {
        sys::mknodat(CWD, dir.join(name), kind, Mode::from_raw_mode(0o640), device)?;
    }
    attributes(dir, block as usize, &mut random)
}

/// A file with data in each part of its map: inode, direct, indirect and double indirect nodes, and a reserved part.
fn sparse(path: &Path, random: &mut Random) -> Outcome {
    let file = File::create(path)?;
    for block in [0, 500, 1500, 2500, 4000, 900_000, 1_100_000, 2_080_000, 3_200_000] {
        let at = block * BLOCK + random.below(BLOCK);
        file.write_all_at(&random.bytes(5000), at)?;
    }
    match sys::fallocate(&file, sys::FallocateFlags::empty(), 700 * BLOCK, 40 * BLOCK) {
        // Files that ext4 maps as ext3 did have no reserved parts.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => (),
        Err(error) => return Err(error.into()),
    }
    file.set_len(3_300_000 * BLOCK + 77)?;
    Ok(())
}

/// A file of which each second block is there.
fn combed(path: &Path, random: &mut Random) -> Outcome {
    let file = File::create(path)?;
    for block in 0..1500 {
        file.write_all_at(&random.bytes(1 + block % 100), 2 * BLOCK * block as u64)?;
    }
    Ok(())
}

fn attributes(dir: &Path, block: usize, random: &mut Random) -> Outcome {
    for (name, count, length) in
        [("size-1", 3, 20), ("size-3488", 1, 3000), ("many", 2, 10), ("links", 12, 200)]
    {
        for number in 0..count {
            let value = random.bytes(length * block / BLOCK as usize);
            sys::setxattr(dir.join(name), format!("user.number-{number}"), &value, XattrFlags::empty())?;
        }
    }
    sys::setxattr(dir.join("size-0"), "trusted.empty", b"", XattrFlags::empty())?;
    sys::setxattr(dir.join("size-0"), "security.some", b"label", XattrFlags::empty())?;
    for number in 0..20 {
        let path = dir.join("many").join(many_name(number * 3 + 1));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4000 | random.below(0o1000) as u32))?;
        let (uid, gid) = (random.below(1 << 31) as u32, random.below(70_000) as u32);
        std::os::unix::fs::chown(&path, Some(uid), Some(gid))?;
    }
    lists(&dir.join("lists"))
}

/// An access control list that names so many users.
fn list_of(users: u32) -> Acl {
    let named = (0..users).map(|user| (Who::User(1_000 + user * 70_000), (user % 8) as u16));
    let entries = [(Who::Owner, 7)].into_iter().chain(named);
    let entries =
        entries.chain([(Who::Group, 5), (Who::NamedGroup(users), 4), (Who::Mask, 6), (Who::Others, 1)]);
    Acl::new(entries.map(|(who, permissions)| AclEntry { who, permissions }).collect()).expect("it is valid")
}

/// Directories with lists that new inodes in them inherit, and files whose lists change with their modes.
fn lists(dir: &Path) -> Outcome {
    fs::create_dir(dir)?;
    let set = |path: &Path, kind: AclKind, users: u32| {
        sys::setxattr(path, kind.name(), &list_of(users).to_wire(), XattrFlags::empty())
    };
    for users in [0, 1, 30] {
        let dir = dir.join(users.to_string());
        fs::create_dir(&dir)?;
        set(&dir, AclKind::Default, users)?;
        fs::create_dir(dir.join("sub"))?;
        for name in ["file", "sub/file", "changed"] {
            fs::write(dir.join(name), name)?;
        }
        set(&dir.join("sub"), AclKind::Access, users + 2)?;
        fs::set_permissions(dir.join("changed"), fs::Permissions::from_mode(0o640))?;
    }
    Ok(())
}

/// The same on a mount of ours.
async fn our_lists<F: Fs>(root: &Process<F>, dir: &str) -> flashweir_fs::vfs::Result<()> {
    root.mkdir(dir, 0o755).await?;
    let set = async |path: &str, kind: AclKind, users: u32| {
        let list = list_of(users).to_wire();
        root.setxattr(path, kind.name(), &list, XattrMode::Set, Follow::Yes).await
    };
    for users in [0, 1, 30] {
        let dir = format!("{dir}/{users}");
        root.mkdir(&dir, 0o755).await?;
        set(&dir, AclKind::Default, users).await?;
        root.mkdir(format!("{dir}/sub"), 0o777).await?;
        for name in ["file", "sub/file", "changed"] {
            root.create(format!("{dir}/{name}")).await?.close().await?;
        }
        set(&format!("{dir}/sub"), AclKind::Access, users + 2).await?;
        root.chmod(format!("{dir}/changed"), 0o640).await?;
        // One that had no name at first has what another would have.
        let nameless = root.open_nameless(&dir, OpenFlags::READ_WRITE, 0o666).await?;
        nameless.write(Source::bytes(&[users as u8; 5_000])).await?;
        root.link_inode(nameless.ino(), format!("{dir}/linked")).await?;
        nameless.close().await?;
    }
    Ok(())
}

fn churn(dir: &Path, seed: u64) -> Outcome {
    let mut random = Random(mix(seed ^ 1));
    let many = dir.join("many");
    for number in 0..NAMES {
        let path = many.join(many_name(number));
        match random.below(6) {
            0 | 1 => fs::remove_file(&path)?,
            2 => fs::rename(&path, dir.join("links").join(format!("moved-{number}")))?,
            3 => fs::write(&path, random.bytes(5000))?,
            _ => (),
        }
    }
    let big = OpenOptions::new().write(true).open(dir.join("big"))?;
    for _ in 0..200 {
        let at = random.below(20 << 20);
        big.write_all_at(&random.bytes(1000), at)?;
    }
    big.set_len((21 << 20) + 123)?;
    let sparse = OpenOptions::new().write(true).open(dir.join("sparse"))?;
    let hole = sys::FallocateFlags::PUNCH_HOLE | sys::FallocateFlags::KEEP_SIZE;
    sys::fallocate(&sparse, hole, 900_000 * BLOCK, 16 * BLOCK)?;
    fs::remove_dir_all(dir.join("odd"))?;
    fs::rename(dir.join("deep").join("0"), dir.join("less-deep"))?;
    fs::remove_file(dir.join("linked"))?;
    sys::removexattr(dir.join("size-3488"), "user.number-0")?;
    sys::setxattr(dir.join("size-1"), "user.number-1", &random.bytes(100), XattrFlags::REPLACE)?;
    Ok(())
}

/// A change of one file that is synced.
struct SyncedChange {
    file: u64,
    at: u64,
    bytes: Vec<u8>,
    size: Option<u64>,
    mode: u32,
    xattr: Option<Vec<u8>>,
    is_data_only: bool,
}

/// Files whose last change was synced are `synced-N`, others `other-N`.
fn synced_changes(seed: u64) -> Vec<SyncedChange> {
    let mut random = Random(mix(seed ^ 3));
    let places = [0, 0, 0, 40, 900, 2_000, 2_970, 1_100_000];
    (0..SYNCED)
        .map(|_| {
            let place = places[random.below(places.len() as u64) as usize];
            let length = 1 + random.below(30_000) as usize;
            // Small files stand in their inodes, some of them not for long.
            let is_small = random.below(3) == 0;
            let (file, at, length, most) = match is_small {
                true => (40 + random.below(20), random.below(2000), 1 + length % 1700, 4000),
                false => (random.below(40), place * BLOCK + random.below(20_000), length, 60_000),
            };
            SyncedChange {
                file,
                at,
                bytes: random.bytes(length),
                size: (random.below(5) == 0).then(|| random.below(most)),
                mode: 0o600 | random.below(0o100) as u32,
                xattr: (random.below(4) == 0).then(|| random.bytes(1 + length % 100)),
                is_data_only: random.below(3) == 0,
            }
        })
        .collect()
}

/// Changes of files that are synced.
const SYNCED: u64 = 150;

fn sync(dir: &Path, seed: u64) -> Outcome {
    let movable = make_movable(dir, seed)?;
    for change in synced_changes(seed) {
        let path = dir.join(format!("synced-{}", change.file));
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        if let Some(size) = change.size {
            file.set_len(size)?;
        }
        file.write_all_at(&change.bytes, change.at)?;
        // fdatasync does not promise what follows.
        if !change.is_data_only {
            fs::set_permissions(&path, fs::Permissions::from_mode(change.mode))?;
            if let Some(value) = &change.xattr {
                sys::setxattr(&path, "user.value", value, XattrFlags::empty())?;
            }
            file.sync_all()?;
        } else {
            file.sync_data()?;
            file.sync_all()?;
        }
    }
    for (number, file) in movable.iter().enumerate() {
        let how = [sys::FallocateFlags::COLLAPSE_RANGE, sys::FallocateFlags::INSERT_RANGE][number % 2];
        sys::fallocate(file, how, 2 * BLOCK, 3 * BLOCK)?;
        file.sync_all()?;
    }
    for number in 0..20 {
        fs::write(dir.join(format!("other-{number}")), b"nobody syncs this")?;
    }
    Ok(())
}

/// Files of which blocks will move: a checkpoint has them.
fn make_movable(dir: &Path, seed: u64) -> Result<Vec<File>, Box<dyn Error>> {
    let mut random = Random(mix(seed ^ 4));
    let mut files = Vec::new();
    for number in 0..6 {
        let mut file = File::create(dir.join(format!("synced-moved-{number}")))?;
        file.write_all(&random.bytes(((10 + 300 * number) * BLOCK) as usize))?;
        files.push(file);
    }
    sys::sync();
    Ok(files)
}

/// The directory of everything else, if it is not there.
async fn make_files<F: Fs>(root: &Process<F>) -> flashweir_fs::vfs::Result<()> {
    match root.mkdir("/files", 0o755).await {
        Ok(_) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

async fn sync_changes<F: Fs>(vfs: &Vfs<F>, seed: u64) -> flashweir_fs::vfs::Result<()> {
    let root = vfs.process(Creds::ROOT);
    make_files(&root).await?;
    vfs.sync_all().await?;
    for change in synced_changes(seed) {
        let path = format!("/files/synced-{}", change.file);
        let file = root.open(&path, OpenFlags::READ_WRITE.create(), 0o644).await?;
        if let Some(size) = change.size {
            file.truncate(size).await?;
        }
        file.pwrite(change.at, Source::bytes(&change.bytes)).await?;
        if !change.is_data_only {
            root.chmod(&path, change.mode as u16).await?;
            if let Some(value) = &change.xattr {
                root.setxattr(&path, "user.value", value, XattrMode::Set, Follow::Yes).await?;
            }
            file.sync(SyncKind::All).await?;
        } else {
            file.sync(SyncKind::Data).await?;
            file.sync(SyncKind::All).await?;
        }
        file.close().await?;
    }
    // Files that no checkpoint has.
    for number in 0..20 {
        let file = root.create(format!("/files/synced-{seed}-{number}")).await?;
        file.write(Source::bytes(&vec![number; 1000 * usize::from(number)])).await?;
        file.sync(SyncKind::All).await?;
        file.close().await?;
    }
    for number in 0..20 {
        let file = root.create(format!("/files/other-{number}")).await?;
        file.write(Source::bytes(b"nobody syncs this")).await?;
        file.close().await?;
    }
    Ok(())
}

fn sync_image(image: &Path, seed: u64, is_cut: bool, journaling: Journaling) -> Outcome {
    async fn run<F: Fs>(vfs: &Vfs<F>, seed: u64, is_cut: bool) -> flashweir_fs::vfs::Result<()> {
        let done = sync_changes(vfs, seed).await;
        if is_cut { done } else { done.and(vfs.unmount().await) }
    }
    match mount_as(image, journaling)? {
        Mounted::F2fs(fs) => with_vfs(*fs, async move |vfs| {
            let done = run(&vfs, seed, is_cut).await;
            let counts = vfs.fs().metrics();
            println!("{} by nodes, {} by checkpoint", counts.fsyncs_by_nodes, counts.fsyncs_by_checkpoint);
            done
        }),
        Mounted::Ext4(fs) => with_vfs(*fs, async move |vfs| {
            let done = run(&vfs, seed, is_cut).await;
            println!("{:?}", vfs.fs().metrics());
            done
        }),
    }
}

fn recover(image: &Path) -> Outcome {
    match mount(image)? {
        Mounted::F2fs(fs) => with_vfs(*fs, async |vfs| {
            println!("{:?}", vfs.fs().recovered());
            vfs.unmount().await
        }),
        Mounted::Ext4(fs) => with_vfs(*fs, async |vfs| {
            println!("{:?}", vfs.fs().recovered());
            vfs.unmount().await
        }),
    }
}

/// Changes a volume through the vfs, in a directory `files` of its own or one that is there.
fn write(image: &Path, seed: u64) -> Outcome {
    async fn run<F: Fs>(vfs: Vfs<F>, seed: u64) -> flashweir_fs::vfs::Result<()> {
        let done = change(&vfs, seed).await;
        done.and(vfs.unmount().await)
    }
    match mount(image)? {
        Mounted::F2fs(fs) => with_vfs(*fs, async move |vfs| run(vfs, seed).await),
        Mounted::Ext4(fs) => with_vfs(*fs, async move |vfs| run(vfs, seed).await),
    }
}

/// A volume of one of the formats.
enum Mounted {
    F2fs(Box<F2fs>),
    Ext4(Box<Ext4>),
}

/// Mounts an image for writing.
fn mount(image: &Path) -> Result<Mounted, Box<dyn Error>> {
    mount_as(image, Journaling::Ordered)
}

fn mount_as(image: &Path, journaling: Journaling) -> Result<Mounted, Box<dyn Error>> {
    let image = Rc::new(Image::open(image, true)?);
    let options = Ext4Options { journaling, ..Ext4Options::default() };
    match block_on(Ext4::mount_with(Rc::clone(&image) as _, options)) {
        Ok(fs) => Ok(Mounted::Ext4(Box::new(fs))),
        Err(ext4::Error::Absent(..)) => Ok(Mounted::F2fs(Box::new(block_on(F2fs::mount(image))?))),
        Err(error) => Err(error.into()),
    }
}

/// Does something with a volume.
fn with_vfs<F: Fs>(
    fs: F,
    what: impl AsyncFnOnce(Vfs<F>) -> flashweir_fs::vfs::Result<()> + 'static,
) -> Outcome {
    let mut executor = Executor::new();
    let options = MountOptions { epoch_seconds: 1_700_000_000, ..MountOptions::default() };
    let vfs = Vfs::mount(fs, executor.handle(), options)?;
    let result = Rc::new(Cell::new(None));
    let slot = Rc::clone(&result);
    executor.spawn(async move { slot.set(Some(what(vfs).await)) });
    let mut now = Instant::ZERO;
    while result.get().is_none() {
        executor.run_ready(now);
        now = executor.next_timer().unwrap_or(now);
    }
    Ok(result.get().expect("it has ended")?)
}

async fn change<F: Fs>(vfs: &Vfs<F>, seed: u64) -> flashweir_fs::vfs::Result<()> {
    let mut random = Random(mix(seed ^ 2));
    let root = vfs.process(Creds::ROOT);
    make_files(&root).await?;
    let start = format!("/files/ours-{}", random.below(1 << 40));
    root.mkdir(&start, 0o750).await?;
    for number in 0..NAMES {
        let name = format!("{start}/{}", many_name(number));
        let file = root.create(&name).await?;
        let bytes = random.below(6000) as usize;
        file.write(Source::bytes(&random.bytes(bytes))).await?;
        if number % 500 == 0 {
            file.sync(SyncKind::All).await?;
        }
        file.close().await?;
    }
    let big = root.create(format!("{start}/big.mp4")).await?;
    for part in 0..20 {
        big.pwrite(part << 20, Source::bytes(&random.bytes(1 << 20))).await?;
    }
    big.truncate((17 << 20) + 77).await?;
    big.close().await?;
    let sparse = root.create(format!("{start}/sparse")).await?;
    for block in [0, 900, 2000, 3000, 900_000, 1_100_000, 2_200_000] {
        sparse.pwrite(block * BLOCK + 100, Source::bytes(&random.bytes(9000))).await?;
    }
    sparse.truncate(2_300_000 * BLOCK + 5).await?;
    sparse.close().await?;
    let mut deep = start.clone();
    for level in 0..40 {
        deep = format!("{deep}/{level}");
        root.mkdir(&deep, 0o700).await?;
    }
    for number in 0..NAMES {
        let name = format!("{start}/{}", many_name(number));
        match random.below(6) {
            0 | 1 => root.unlink(&name).await?,
            2 => root.rename(&name, format!("{deep}/moved-{number}"), RenameMode::Replace).await?,
            3 => root.truncate(&name, random.below(9000)).await?,
            4 => root.link(&name, format!("{start}/0/link-{number}")).await.map(|_| ())?,
            _ => root
                .symlink("x".repeat(1 + random.below(4000) as usize), format!("{start}/1-{number}"))
                .await
                .map(|_| ())?,
        }
    }
    small(&root, &start, &mut random).await?;
    for number in 0..30 {
        let value = random.bytes(10 + 8 * number);
        let name = format!("user.number-{number}");
        match root.setxattr(&start, name, &value, XattrMode::Create, Follow::Yes).await {
            // An inode of ext4 has a block for them at most.
            Err(Errno::ENOSPC) => break,
            set => set?,
        }
    }
    root.removexattr(&start, "user.number-3", Follow::Yes).await?;
    our_lists(&root, &format!("{start}/lists")).await?;
    root.chown(&deep, Some(7), Some(70_000), Follow::Yes).await?;
    root.mknod(format!("{start}/device"), flashweir_fs::vfs::Kind::BlockDevice(0x0123_4567), 0o600).await?;
    root.rename(format!("{start}/0"), format!("{start}/zero"), RenameMode::Replace).await?;
    vfs.sync_all().await
}

/// Files and directories around the limits of what an inode holds, with and without extra fields.
async fn small<F: Fs>(root: &Process<F>, start: &str, random: &mut Random) -> flashweir_fs::vfs::Result<()> {
    for length in [0, 1, 3463, 3464, 3465, 3487, 3488, 3489, 4096, 4097] {
        let file = root.create(format!("{start}/size-{length}")).await?;
        file.write(Source::bytes(&random.bytes(length))).await?;
        file.close().await?;
        let file = root.create(format!("{start}/grown-{length}")).await?;
        for part in random.bytes(length).chunks(700) {
            file.write(Source::bytes(part)).await?;
            file.sync(SyncKind::All).await?;
        }
        file.truncate(length as u64 / 2).await?;
        file.truncate(length as u64 / 2 + 100).await?;
        file.close().await?;
    }
    for names in [0, 1, 177, 178, 179, 180, 181, 182, 215] {
        let dir = format!("{start}/few-{names}");
        root.mkdir(&dir, 0o750).await?;
        for number in 0..names {
            root.create(format!("{dir}/{number}")).await?.close().await?;
        }
        if names == 178 {
            for number in 0..60 {
                root.unlink(format!("{dir}/{}", 2 * number)).await?;
                root.rename(
                    format!("{dir}/{}", 2 * number + 1),
                    format!("{dir}/-{number}"),
                    RenameMode::Replace,
                )
                .await?;
            }
        }
    }
    Ok(())
}

/// A line of a list. Contents are those of blocks that are not zero, with their places.
struct Line {
    kind: Kind,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    size: u64,
    /// Units of 512 bytes.
    sectors: u64,
    device: (u32, u32),
    times: [(i64, u32); 3],
    content: u64,
    xattrs: Xattrs,
}

/// An attribute as programs have it, from its name and its bytes in an image.
fn for_programs((name, value): (Vec<u8>, Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    let list = AclKind::of_name(&name).and_then(|_| Acl::from_disk(&value));
    (name, list.map_or(value, |list| list.to_wire()))
}

impl Line {
    fn text(&mut self, path: &[u8]) -> String {
        self.xattrs.sort();
        let xattrs = self
            .xattrs
            .iter()
            .map(|(name, value)| format!(" {}={}:{:016x}", name.escape_ascii(), value.len(), hash(0, value)));
        let Self { kind, mode, uid, gid, links, size, sectors, device, times, content, .. } = &self;
        format!(
            "{} {kind:?} {mode:o} {uid}:{gid} links {links} size {size} sectors {sectors} device {device:?} times \
             {times:?} content {content:016x}{}",
            path.escape_ascii(),
            xattrs.collect::<String>()
        )
    }
}

/// FNV-1a.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Adds a block of a file unless it is zero.
fn add_block(content: u64, index: u64, bytes: &[u8]) -> u64 {
    match bytes.iter().rposition(|&byte| byte != 0) {
        None => content,
        Some(last) => hash(hash(content, &index.to_le_bytes()), &bytes[..=last]),
    }
}

fn list(dir: &Path, lines: &mut Vec<String>) -> Outcome {
    let mut todo = vec![(dir.to_path_buf(), Vec::new())];
    while let Some((path, name)) = todo.pop() {
        let stat = sys::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = Kind::of_mode(stat.st_mode as u16).ok_or("a mode without a kind")?;
        let content = match kind {
            Kind::Regular => content_of(&path, stat.st_size as u64)?,
            Kind::Symlink => hash(0, fs::read_link(&path)?.as_os_str().as_bytes()),
            _ => 0,
        };
        if kind == Kind::Directory {
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                let name = [&name[..], b"/", entry.file_name().as_bytes()].concat();
                todo.push((entry.path(), name));
            }
        }
        let times = fs::symlink_metadata(&path)?;
        let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        let device = if is_device { (sys::major(stat.st_rdev), sys::minor(stat.st_rdev)) } else { (0, 0) };
        let mut line = Line {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: stat.st_nlink as u32,
            size: if is_device { 0 } else { stat.st_size as u64 },
            sectors: stat.st_blocks as u64,
            device,
            times: [
                (times.atime(), times.atime_nsec() as u32),
                (times.mtime(), times.mtime_nsec() as u32),
                (times.ctime(), times.ctime_nsec() as u32),
            ],
            content,
            xattrs: xattrs_of(&path)?,
        };
        lines.push(line.text(&name));
    }
    Ok(())
}

fn content_of(path: &PathBuf, size: u64) -> Result<u64, Box<dyn Error>> {
    let file = File::open(path)?;
    let (mut content, mut at) = (0, 0);
    let mut buffer = vec![0; 256 * BLOCK as usize];
    while at < size {
        let Ok(data) = sys::seek(&file, SeekFrom::Data(at)) else { break };
        let end = sys::seek(&file, SeekFrom::Hole(data))?.min(size);
        at = data / BLOCK * BLOCK;
        while at < end {
            let bytes = (end - at).min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..bytes], at)?;
            for (index, block) in (at / BLOCK..).zip(buffer[..bytes].chunks(BLOCK as usize)) {
                content = add_block(content, index, block);
            }
            at += bytes as u64;
        }
    }
    Ok(content)
}

fn xattrs_of(path: &Path) -> Result<Xattrs, Box<dyn Error>> {
    let mut names = vec![0; 65_536];
    let length = sys::llistxattr(path, &mut names[..])?;
    let mut xattrs = Vec::new();
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65_536];
        let length = sys::lgetxattr(path, name, &mut value[..])?;
        xattrs.push((name.to_vec(), value[..length].to_vec()));
    }
    Ok(xattrs)
}
