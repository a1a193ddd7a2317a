//! Scripts of file operations, each with what it returns, in the manner of pjdfstest.
//!
//! ```text
//! [u<uid>:<gid>[,<gid>...]] <command> <arguments> => <result>
//! ```
//! `{n}` in an argument is a name of n bytes. Time passes between lines. `mark` remembers the times of an inode, and
//! `changed` says which have changed since.

use flashweir_fs::vfs::*;
use std::collections::BTreeMap;

pub(crate) struct Script<F: Fs> {
    root: Process<F>,
    files: BTreeMap<String, File<F>>,
    marks: BTreeMap<String, Attr>,
}

/// A result as text.
fn text<T>(result: Result<T>, show: impl FnOnce(T) -> String) -> String {
    result.map_or_else(|errno| errno.name().to_owned(), show)
}

fn ok<T>(result: Result<T>) -> String {
    text(result, |_| "ok".to_owned())
}

fn number(text: &str, radix: u32) -> u64 {
    u64::from_str_radix(text, radix).unwrap_or_else(|_| panic!("`{text}` is not a number"))
}

fn octal(text: &str) -> u16 {
    number(text, 8) as u16
}

fn id(text: &str) -> Option<u32> {
    (text != "-1").then(|| number(text, 10) as u32)
}

/// `{n}` becomes n bytes.
fn expand(text: &str) -> String {
    let Some((before, rest)) = text.split_once('{') else { return text.to_owned() };
    let (count, after) = rest.split_once('}').expect("a brace is closed");
    format!("{before}{}{}", "x".repeat(number(count, 10) as usize), expand(after))
}

fn flags(list: &str) -> OpenFlags {
    let mut flags = OpenFlags::READ;
    for word in list.split(',') {
        flags = match word {
            "r" => flags,
            "w" => OpenFlags { access: Access::Write, ..flags },
            "rw" => OpenFlags { access: Access::ReadWrite, ..flags },
            "creat" => flags.create(),
            "excl" => OpenFlags { exclusive: true, ..flags },
            "trunc" => flags.truncate(),
            "append" => flags.append(),
            "direct" => flags.direct(),
            "dir" => flags.directory(),
            "nofollow" => flags.no_follow(),
            _ => panic!("no flag is called `{word}`"),
        };
    }
    flags
}

fn time(text: &str) -> SetTime {
    match text {
        "now" => SetTime::Now,
        "omit" => SetTime::Omit,
        _ => SetTime::At(Timestamp { seconds: number(text, 10) as i64, nanos: 7 }),
    }
}

fn rename_mode(text: Option<&str>) -> RenameMode {
    match text {
        None => RenameMode::Replace,
        Some("noreplace") => RenameMode::NoReplace,
        Some("exchange") => RenameMode::Exchange,
        Some(other) => panic!("no rename is called `{other}`"),
    }
}

fn field(attr: &Attr, name: &str) -> String {
    match name {
        "kind" => match attr.kind {
            Kind::File => "file".to_owned(),
            Kind::Directory => "dir".to_owned(),
            Kind::Symlink => "symlink".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        },
        "mode" => format!("{:04o}", attr.mode),
        "links" => attr.links.to_string(),
        "uid" => attr.uid.to_string(),
        "gid" => attr.gid.to_string(),
        "size" => attr.size.to_string(),
        "blocks" => attr.blocks_512.to_string(),
        "atime" => attr.atime.seconds.to_string(),
        "mtime" => attr.mtime.seconds.to_string(),
        _ => panic!("no field is called `{name}`"),
    }
}

impl<F: Fs> Script<F> {
    /// Runs a script in a directory of its own. Panics with the line that gives another result.
    pub(crate) async fn run(vfs: Vfs<F>, handle: flashweir_core::executor::Handle, script: &str) {
        let root = vfs.process(Creds::ROOT).with_umask(0);
        root.mkdir("/t", 0o755).await.expect("the directory of the test is made");
        let root = root.with_dir("/t").await.expect("the directory of the test is there");
        let mut run = Self { root, files: BTreeMap::new(), marks: BTreeMap::new() };
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            handle.sleep_until(handle.now() + flashweir_core::Duration::from_millis(1)).await;
            let (command, expected) = line.split_once("=>").unwrap_or((line, "ok"));
            let words: Vec<String> = command.split_whitespace().map(expand).collect();
            let got = run.step(&words).await;
            assert_eq!(got, expected.trim(), "in the line `{line}`");
        }
    }

    async fn step(&mut self, words: &[String]) -> String {
        let (caller, words) = match words[0].strip_prefix('u').and_then(|who| who.split_once(':')) {
            Some((uid, gids)) if uid.bytes().all(|byte| byte.is_ascii_digit()) => {
                let groups: Vec<u32> = gids.split(',').map(|gid| number(gid, 10) as u32).collect();
                let uid = number(uid, 10) as u32;
                let creds = Creds { groups: groups[1..].to_vec(), ..Creds::user(uid, groups[0]) };
                let process = self.root.vfs().process(creds).with_umask(0);
                (process.at(self.root.dir()), &words[1..])
            }
            _ => (self.root.clone(), words),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[0].split_once(':') {
            Some((command, file)) => self.step_file(&caller, command, file, &words[1..]).await,
            None => self.step_path(&caller, words[0], &words[1..]).await,
        }
    }

    async fn step_path(&mut self, p: &Process<F>, command: &str, args: &[&str]) -> String {
        let follow = if command.starts_with('l') && command != "link" { Follow::No } else { Follow::Yes };
        match (command, args) {
            ("open", [path, list, rest @ ..]) => {
                let permissions = rest.first().map_or(0o644, |text| octal(text));
                match p.open(path, flags(list), permissions).await {
                    Ok(file) => ok(file.close().await),
                    Err(errno) => errno.name().to_owned(),
                }
            }
            ("create", [path, mode]) => ok(p.open(path, OpenFlags::WRITE.create_new(), octal(mode)).await),
            ("umask", [mask, "create", path, mode]) => {
                let flags = OpenFlags::WRITE.create_new();
                ok(p.with_umask(octal(mask)).open(path, flags, octal(mode)).await)
            }
            ("umask", [mask, "mkdir", path, mode]) => {
                ok(p.with_umask(octal(mask)).mkdir(path, octal(mode)).await)
            }
            ("mkdir", [path, mode]) => ok(p.mkdir(path, octal(mode)).await),
            ("mkfifo", [path, mode]) => ok(p.mknod(path, Kind::Fifo, octal(mode)).await),
            ("mksocket", [path, mode]) => ok(p.mknod(path, Kind::Socket, octal(mode)).await),
            ("mkblock", [path, mode]) => ok(p.mknod(path, Kind::BlockDevice(0x801), octal(mode)).await),
            ("symlink", [target, path]) => ok(p.symlink(target, path).await),
            ("link", [old, new]) => ok(p.link(old, new).await),
            ("unlink", [path]) => ok(p.unlink(path).await),
            ("rmdir", [path]) => ok(p.rmdir(path).await),
            ("rename", [old, new, rest @ ..]) => {
                ok(p.rename(old, new, rename_mode(rest.first().copied())).await)
            }
            ("chmod", [path, mode]) => ok(p.chmod(path, octal(mode)).await),
            ("chown" | "lchown", [path, uid, gid]) => ok(p.chown(path, id(uid), id(gid), follow).await),
            ("utimens" | "lutimens", [path, atime, mtime]) => {
                ok(p.utimens(path, time(atime), time(mtime), follow).await)
            }
            ("truncate", [path, size]) => ok(p.truncate(path, number(size, 10)).await),
            ("readlink", [path]) => {
                text(p.readlink(path).await, |target| String::from_utf8_lossy(&target).into_owned())
            }
            ("stat" | "lstat", [path, name]) => text(p.stat(path, follow).await, |attr| field(&attr, name)),
            ("access", [path, wish]) => {
                let has = |letter| wish.contains(letter);
                let wish = Wish { read: has('r'), write: has('w'), execute: has('x') };
                ok(p.access(path, wish).await)
            }
            ("list", [path]) => text(p.list(path).await, |entries| {
                let names = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
                names.collect::<Vec<_>>().join(" ")
            }),
            ("setxattr", [path, name, value, rest @ ..]) => {
                let mode = match rest {
                    [] => XattrMode::Set,
                    ["create"] => XattrMode::Create,
                    ["replace"] => XattrMode::Replace,
                    _ => panic!("{rest:?}"),
                };
                ok(p.setxattr(path, name, value.as_bytes(), mode, Follow::No).await)
            }
            ("getxattr", [path, name]) => text(p.getxattr(path, name, Follow::No).await, |value| {
                String::from_utf8_lossy(&value).into_owned()
            }),
            ("listxattr", [path]) => text(p.listxattr(path, Follow::No).await, |names| {
                let names = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
                names.collect::<Vec<_>>().join(" ")
            }),
            ("removexattr", [path, name]) => ok(p.removexattr(path, name, Follow::No).await),
            ("inodes-used", []) => {
                text(p.vfs().statfs().await, |stat| (stat.inodes - stat.inodes_free).to_string())
            }
            ("mark" | "lmark", [path]) => {
                let attr = p.stat(path, follow).await;
                if let Ok(attr) = attr {
                    self.marks.insert((*path).to_owned(), attr);
                }
                ok(attr)
            }
            ("changed" | "lchanged", [path]) => {
                let before = self.marks[*path];
                text(p.stat(path, follow).await, |after| {
                    let times = [
                        ("atime", before.atime, after.atime),
                        ("mtime", before.mtime, after.mtime),
                        ("ctime", before.ctime, after.ctime),
                    ];
                    let changed: Vec<&str> = times
                        .iter()
                        .filter(|(_, before, after)| before != after)
                        .map(|time| time.0)
                        .collect();
                    if changed.is_empty() { "nothing".to_owned() } else { changed.join(" ") }
                })
            }
            _ => panic!("no command is called `{command} {}`", args.join(" ")),
        }
    }

    async fn step_file(&mut self, p: &Process<F>, command: &str, name: &str, args: &[&str]) -> String {
        if let ("open", [path, list, rest @ ..]) = (command, args) {
            let permissions = rest.first().map_or(0o644, |text| octal(text));
            return match p.open(path, flags(list), permissions).await {
                Ok(file) => {
                    self.files.insert(name.to_owned(), file);
                    "ok".to_owned()
                }
                Err(errno) => errno.name().to_owned(),
            };
        }
        if command == "close" {
            return ok(self.files.remove(name).expect("the file is open").close().await);
        }
        let file = &self.files[name];
        match (command, args) {
            ("read", [count]) => {
                let mut bytes = vec![0; number(count, 10) as usize];
                let read = file.read(Sink::bytes(&mut bytes)).await;
                text(read, |read| format!("`{}`", String::from_utf8_lossy(&bytes[..read as usize])))
            }
            ("write", [bytes]) => text(file.write(Source::bytes(bytes.as_bytes())).await, |n| n.to_string()),
            ("pwrite", [at, bytes]) => {
                let source = Source::bytes(bytes.as_bytes());
                text(file.pwrite(number(at, 10), source).await, |n| n.to_string())
            }
            ("zeros", [at, count]) => {
                let source = Source::zeros(number(count, 10));
                text(file.pwrite(number(at, 10), source).await, |n| n.to_string())
            }
            ("skip", [at, count]) => {
                text(file.pread(number(at, 10), Sink::nowhere(number(count, 10))).await, |n| n.to_string())
            }
            ("seek", ["start", at]) => text(file.seek(Seek::Start(number(at, 10))).await, |n| n.to_string()),
            ("seek", ["current", by]) => {
                text(file.seek(Seek::Current(by.parse().expect("a number"))).await, |n| n.to_string())
            }
            ("seek", ["end", by]) => {
                text(file.seek(Seek::End(by.parse().expect("a number"))).await, |n| n.to_string())
            }
            ("ftruncate", [size]) => ok(file.truncate(number(size, 10)).await),
            ("fallocate", [at, count]) => ok(file.allocate(number(at, 10), number(count, 10), false).await),
            ("punch", [at, count]) => ok(file.punch_hole(number(at, 10), number(count, 10)).await),
            ("fstat", [name]) => text(file.attr().await, |attr| field(&attr, name)),
            ("fsync", []) => ok(file.sync(SyncKind::All).await),
            ("fdatasync", []) => ok(file.sync(SyncKind::Data).await),
            ("readdir", []) => {
                text(file.read_dir(Cookie::START, 100).await, |entries| entries.len().to_string())
            }
            _ => panic!("no command is called `{command}` {args:?}"),
        }
    }
}
