//! What POSIX and Linux promise, call by call. The topics are those of pjdfstest; the scripts are ours.
//!
//! Each script is a function of the file system below, so that every one can be held to them.

use crate::bed::Bed;
use crate::script::Script;
use flashweir_core::Duration;
use flashweir_fs::memfs::{MemFs, MemFsConfig};
use flashweir_fs::vfs::*;

/// Every topic with its script.
pub(crate) const TOPICS: &[(&str, &str)] = &[
    ("chmod", CHMOD),
    ("chown", CHOWN),
    ("link", LINK),
    ("mkdir", MKDIR),
    ("mknod", MKNOD),
    ("open", OPEN),
    ("paths", PATHS),
    ("rename", RENAME),
    ("rename-exchange", EXCHANGE),
    ("rmdir", RMDIR),
    ("symlink", SYMLINK),
    ("sticky", STICKY),
    ("truncate", TRUNCATE),
    ("unlink", UNLINK),
    ("unlink-while-open", UNLINK_WHILE_OPEN),
    ("utimens", UTIMENS),
    ("access", ACCESS),
    ("xattr", XATTR),
    ("descriptors", DESCRIPTORS),
];

const CHMOD: &str = "
    create f 0644
    chmod f 0111
    stat f mode => 0111
    chmod f 7777
    stat f mode => 7777
    mkdir d 0755
    chmod d 1777
    stat d mode => 1777
    symlink f s
    chmod s 0600
    stat f mode => 0600
    lstat s mode => 0777
    chmod missing 0644 => ENOENT
    chmod f/x 0644 => ENOTDIR
    chmod {256} 0644 => ENAMETOOLONG
    symlink loop loop
    chmod loop 0644 => ELOOP
    # Only the owner and root.
    chown f 10 20
    u10:20 chmod f 0640
    u11:20 chmod f 0641 => EPERM
    stat f mode => 0640
    # Search permission on the way.
    create d/f 0644
    chown d/f 10 20
    chmod d 0700
    u10:20 chmod d/f 0600 => EACCES
    chmod d 0711
    u10:20 chmod d/f 0600
    # The change time changes with success only.
    mark f
    chmod f 0600
    changed f => ctime
    mark f
    u11:20 chmod f 0601 => EPERM
    changed f => nothing
    # The set-group bit needs membership.
    chown f 10 30
    u10:20 chmod f 2755
    stat f mode => 0755
    u10:20,30 chmod f 2755
    stat f mode => 2755
    # Writing by others than root takes privileges away.
    chmod f 6777
    u11:11 open:w f w
    u11:11 write:w x => 1
    close:w
    stat f mode => 0777
    chmod f 6777
    open:w f w
    write:w x => 1
    close:w
    stat f mode => 6777
    u11:11 truncate f 3
    stat f mode => 0777
";

const CHOWN: &str = "
    create f 0644
    chown f 10 20
    stat f uid => 10
    stat f gid => 20
    chown f -1 30
    stat f uid => 10
    stat f gid => 30
    chown f 11 -1
    stat f uid => 11
    # An owner chooses among his groups and gives nothing away.
    u11:40,41 chown f -1 41
    stat f gid => 41
    u11:40,41 chown f 11 40
    stat f gid => 40
    u11:40,41 chown f -1 50 => EPERM
    u11:40,41 chown f 12 -1 => EPERM
    u12:40 chown f -1 40 => EPERM
    u12:40 chown f 12 40 => EPERM
    # Links.
    symlink f s
    chown s 1 2
    stat f uid => 1
    lstat s uid => 0
    lchown s 3 4
    lstat s uid => 3
    stat f uid => 1
    # Privileges go with the owner.
    chmod f 6755
    chown f 7 8
    stat f mode => 0755
    chmod f 2745
    chown f 7 8
    stat f mode => 2745
    mkdir d 0755
    chmod d 6755
    chown d 7 8
    stat d mode => 6755
    chown missing 1 1 => ENOENT
    chown f/x 1 1 => ENOTDIR
    chown {256} 1 1 => ENAMETOOLONG
    mark f
    chown f 7 9
    changed f => ctime
    mark f
    u12:40 chown f 12 40 => EPERM
    changed f => nothing
";

const LINK: &str = "
    create f 0644
    link f g
    stat f links => 2
    link g h
    stat f links => 3
    chmod h 0600
    stat f mode => 0600
    unlink f
    stat g links => 2
    stat f links => ENOENT
    link missing x => ENOENT
    link g h => EEXIST
    mkdir d 0755
    link d e => EPERM
    link g g/x => ENOTDIR
    link g/x y => ENOTDIR
    link g missing/x => ENOENT
    link g {256} => ENAMETOOLONG
    link g d/x
    stat d/x links => 3
    link g d => EEXIST
    link g . => EEXIST
    link g x/ => ENOENT
    # A symbolic link gets the name itself.
    symlink g s
    link s t
    lstat t kind => symlink
    lstat t links => 2
    # Times: the inode's change time, the directory's modification and change time.
    mark g
    mark d
    link g d/y
    changed g => ctime
    changed d => mtime ctime
    mark d
    link g d/y => EEXIST
    changed d => nothing
    # Rights.
    mkdir e 0755
    u10:10 link g e/x => EACCES
    chmod e 0777
    u10:10 link g e/x
    chmod e 0666
    u10:10 link g e/y => EACCES
";

const MKDIR: &str = "
    mkdir d 0755
    stat d kind => dir
    stat d mode => 0755
    stat d links => 2
    umask 022 mkdir e 0777
    stat e mode => 0755
    umask 077 mkdir g 0777
    stat g mode => 0700
    mkdir d 0755 => EEXIST
    create f 0644
    mkdir f 0755 => EEXIST
    mkdir f/d 0755 => ENOTDIR
    mkdir missing/d 0755 => ENOENT
    mkdir {256} 0755 => ENAMETOOLONG
    mkdir {255} 0755
    mkdir . 0755 => EEXIST
    mkdir .. 0755 => EEXIST
    mkdir / 0755 => EEXIST
    mkdir d/. 0755 => EEXIST
    symlink missing s
    mkdir s 0755 => EEXIST
    mkdir h/ 0755
    stat h kind => dir
    # Link counts and times of the directory above.
    mark d
    mkdir d/a 0755
    changed d => mtime ctime
    stat d links => 3
    mkdir d/b 0755
    stat d links => 4
    rmdir d/a
    stat d links => 3
    # Owner and group.
    chmod d 0777
    u10:20 mkdir d/mine 0755
    stat d/mine uid => 10
    stat d/mine gid => 20
    chmod d 2777
    chown d 0 30
    u10:20 mkdir d/inherited 0755
    stat d/inherited gid => 30
    stat d/inherited mode => 2755
    u10:20 create d/inherited/f 0644
    stat d/inherited/f gid => 30
    # Who is not of the group makes nothing that runs as it.
    u10:20 create d/inherited/g 2755
    stat d/inherited/g mode => 0755
    u10:30 create d/inherited/h 2755
    stat d/inherited/h mode => 2755
    chmod d 0755
    u10:20 mkdir d/x 0755 => EACCES
    u10:20 mkdir d/mine/x 0755
    chmod d 0666
    u10:20 mkdir d/mine/y 0755 => EACCES
";

const MKNOD: &str = "
    mkfifo p 0644
    stat p kind => fifo
    stat p mode => 0644
    stat p links => 1
    mksocket q 0600
    stat q kind => socket
    mkblock b 0600
    stat b kind => blockdevice(2049)
    u10:10 mkblock c 0600 => EACCES
    mkdir d 0777
    u10:10 mkblock d/c 0600 => EPERM
    u10:10 mkfifo d/c 0600
    stat d/c uid => 10
    mkfifo p 0644 => EEXIST
    mkfifo p/x 0644 => ENOTDIR
    mkfifo missing/x 0644 => ENOENT
    mkfifo {256} 0644 => ENAMETOOLONG
    open p r => ENXIO
    open q r => ENXIO
    truncate p 0 => EINVAL
    link p r
    stat p links => 2
    rename p s
    unlink s
    unlink r
    stat r links => ENOENT
";

const OPEN: &str = "
    open f r => ENOENT
    open f w => ENOENT
    open f rw,creat 0640
    stat f mode => 0640
    open f rw,creat 0600
    stat f mode => 0640
    open f rw,creat,excl => EEXIST
    umask 027 create g 0777
    stat g mode => 0750
    mkdir d 0755
    open d r
    open d r,dir
    open d w => EISDIR
    open d rw => EISDIR
    open d r,trunc => EISDIR
    open d r,creat => EISDIR
    open f r,dir => ENOTDIR
    open f/x r => ENOTDIR
    open f/x rw,creat => ENOTDIR
    open missing/x rw,creat => ENOENT
    open x/ rw,creat => EISDIR
    open f/ r => ENOTDIR
    open {256} rw,creat => ENAMETOOLONG
    open {255} rw,creat
    open x r,creat,dir => EINVAL
    # Symbolic links.
    symlink f s
    open s r
    open s r,nofollow => ELOOP
    open s r,nofollow,dir => ENOTDIR
    open s w,creat,excl => EEXIST
    symlink new t
    open t w => ENOENT
    open t w,creat,excl => EEXIST
    open t w,creat 0600
    stat new mode => 0600
    symlink loop loop
    open loop r => ELOOP
    open loop rw,creat => ELOOP
    # Truncation.
    open:w f w
    write:w hello => 5
    close:w
    stat f size => 5
    mark f
    open f w,trunc
    stat f size => 0
    changed f => mtime ctime
    # Rights.
    chmod f 0200
    chown f 10 20
    u10:20 open f w
    u10:20 open f r => EACCES
    u10:20 open f rw => EACCES
    chmod f 0040
    u10:20 open f r => EACCES
    u11:20 open f r
    u11:20 open f w => EACCES
    chmod f 0004
    u11:20 open f r => EACCES
    u11:21 open f r
    chmod f 0444
    u10:20 open f r,trunc => EACCES
    # A new file can be written whatever its permissions are.
    chmod d 0777
    u10:20 open:n d/n w,creat 0000
    write:n x => 1
    close:n
    u10:20 open d/n r => EACCES
    chmod d 0755
    u10:20 open d/o w,creat => EACCES
    chmod d 0644
    u10:20 open d/n r => EACCES
    # Times of the directory.
    mark d
    open d/p w,creat
    changed d => mtime ctime
    mark d
    open d/p w,creat
    changed d => nothing
";

const PATHS: &str = "
    mkdir a 0755
    mkdir a/b 0755
    create a/b/f 0644
    stat a/b/../b/./f kind => file
    stat a//b///f kind => file
    stat a/b/ kind => dir
    stat a/b/f/ kind => ENOTDIR
    stat a/b/f/. kind => ENOTDIR
    stat a/b/f/.. kind => ENOTDIR
    stat /t/a kind => dir
    stat /t/../t/a kind => dir
    stat /../../t/a kind => dir
    stat / kind => dir
    stat // kind => dir
    stat . kind => dir
    stat a/missing/.. kind => ENOENT
    stat {255} kind => ENOENT
    stat {256} kind => ENAMETOOLONG
    stat {256}/x kind => ENAMETOOLONG
    stat a/{4095} kind => ENAMETOOLONG
    # Symbolic links in the middle, absolute and relative.
    symlink a/b s
    stat s/f kind => file
    symlink /t/a t
    stat t/b/f kind => file
    symlink ../a/b a/u
    stat a/u/f kind => file
    symlink s v
    symlink v w
    stat w/f kind => file
    stat w/../b/f kind => file
    lstat w kind => symlink
    lstat w/ kind => dir
    symlink missing x
    stat x kind => ENOENT
    lstat x kind => symlink
    symlink y z
    symlink z y
    stat y kind => ELOOP
    stat y/f kind => ELOOP
    lstat y kind => symlink
    symlink a/b/f q
    stat q/ kind => ENOTDIR
    list a/b/f => ENOTDIR
    list a => b u
";

const RENAME: &str = "
    create f 0644
    rename f g
    stat f kind => ENOENT
    stat g kind => file
    create h 0600
    rename h g
    stat g mode => 0600
    stat h kind => ENOENT
    inodes-used => 3
    rename missing x => ENOENT
    rename g missing/x => ENOENT
    rename g/x y => ENOTDIR
    rename g g/x => ENOTDIR
    rename g {256} => ENAMETOOLONG
    rename {256} g => ENAMETOOLONG
    # The same inode under two names: nothing happens.
    link g i
    rename g i
    stat g links => 2
    stat i links => 2
    rename g g
    unlink i
    # Types.
    mkdir d 0755
    rename g d => EISDIR
    rename d g => ENOTDIR
    mkdir e 0755
    create e/x 0644
    rename d e => ENOTEMPTY
    rename e d
    stat d/x kind => file
    stat e kind => ENOENT
    rename g/ h => ENOTDIR
    rename g h/ => ENOTDIR
    rename d/ e/
    stat e/x kind => file
    # Not beneath itself.
    mkdir e/a 0755
    mkdir e/a/b 0755
    rename e e/a/b/c => EINVAL
    rename e e/a => EINVAL
    rename e/a/b e => ENOTEMPTY
    rename . x => EBUSY
    rename e/a/.. x => EBUSY
    rename e . => EBUSY
    rename / x => EBUSY
    # Link counts and parents of directories.
    stat e links => 3
    mkdir k 0755
    rename e/a k/a
    stat e links => 2
    stat k links => 3
    stat k/a/.. links => 3
    stat k/a/b/../../a kind => dir
    mkdir l 0755
    rename k/a l
    stat k links => 2
    stat l links => 3
    stat l/b kind => dir
    # Times.
    mark e
    mark k
    mark e/x
    rename e/x k/x
    changed e => mtime ctime
    changed k => mtime ctime
    stat k/x links => 1
    # The link itself moves, not what it leads to.
    symlink g s
    rename s t
    readlink t => g
    symlink e u
    rename u/ v => ENOTDIR
    unlink u/ => ENOTDIR
    rename u v
    unlink v
    rename k/x t
    lstat t kind => file
    # Only if there is nothing.
    create n 0644
    rename n t noreplace => EEXIST
    rename n o noreplace
    stat o kind => file
    # Rights.
    mkdir p 0755
    create p/f 0644
    mkdir q 0777
    u10:10 rename p/f q/f => EACCES
    chmod p 0777
    u10:10 rename p/f q/f
    chmod q 0755
    u10:10 rename q/f p/f => EACCES
    chmod q 0777
    # A directory of somebody else gets no other parent.
    mkdir p/d 0755
    u10:10 rename p/d q/d => EACCES
    u10:10 rename p/d p/e
    chmod p/e 0777
    u10:10 rename p/e q/d
";

const EXCHANGE: &str = "
    create f 0644
    mkdir d 0755
    mkdir e 0755
    create d/x 0600
    rename f d/x exchange
    stat f mode => 0600
    stat d/x mode => 0644
    rename f missing exchange => ENOENT
    rename d/x e exchange
    stat d/x kind => dir
    stat e kind => file
    stat d links => 3
    stat d/x/../x kind => dir
    rename d d/x exchange => EINVAL
    rename d/x d exchange => EINVAL
    mkdir g 0755
    mkdir g/y 0755
    create g/y/z 0644
    rename d/x g/y exchange
    stat d/x/z kind => file
    stat d links => 3
    stat g links => 3
    rename f f exchange
    mark f
    mark e
    rename f e exchange
    stat f mode => 0644
    stat e mode => 0600
    # What is or is not there is found before who is above whom.
    mkdir a 0755
    mkdir a/b 0755
    create a/b/c 0644
    rename a/b/c a noreplace => EEXIST
    rename a/b/c a => ENOTEMPTY
    rename a a/b/missing exchange => ENOENT
    # A directory of somebody else gets no other parent.
    mkdir v 0777
    mkdir w 0777
    mkdir v/theirs 0755
    u10:10 mkdir w/mine 0755
    u10:10 rename w/mine v/theirs exchange => EACCES
";

const RMDIR: &str = "
    mkdir d 0755
    rmdir d
    stat d kind => ENOENT
    rmdir d => ENOENT
    mkdir d 0755
    create d/f 0644
    rmdir d => ENOTEMPTY
    rmdir d/f => ENOTDIR
    rmdir d/f/x => ENOTDIR
    unlink d/f
    rmdir d/
    mkdir d 0755
    mkdir d/e 0755
    rmdir d => ENOTEMPTY
    rmdir d/e/. => EINVAL
    rmdir d/e/.. => ENOTEMPTY
    rmdir / => EBUSY
    rmdir {256} => ENAMETOOLONG
    symlink d s
    rmdir s => ENOTDIR
    mark d
    rmdir d/e
    changed d => mtime ctime
    stat d links => 2
    mkdir d/e 0755
    u10:10 rmdir d/e => EACCES
    chmod d 0777
    u10:10 rmdir d/e
    # A removed directory that is open is empty and takes nothing.
    mkdir d/e 0755
    open:e d/e r
    rmdir d/e
    readdir:e => 0
    fstat:e links => 0
    close:e
    inodes-used => 4
";

const SYMLINK: &str = "
    symlink target s
    readlink s => target
    lstat s kind => symlink
    lstat s size => 6
    lstat s mode => 0777
    symlink other s => EEXIST
    create f 0644
    symlink x f => EEXIST
    symlink x f/y => ENOTDIR
    symlink x missing/y => ENOENT
    symlink x {256} => ENAMETOOLONG
    symlink {4095} long
    lstat long size => 4095
    symlink {4096} longer => ENAMETOOLONG
    readlink f => EINVAL
    readlink missing => ENOENT
    mkdir d 0755
    readlink d => EINVAL
    mark d
    symlink x d/s
    changed d => mtime ctime
    u10:10 symlink x d/t => EACCES
    symlink . here
    stat here/f kind => file
    unlink s
    lstat s kind => ENOENT
";

const STICKY: &str = "
    mkdir d 1777
    u10:10 create d/a 0666
    u11:11 create d/b 0666
    u11:11 unlink d/a => EPERM
    u11:11 rename d/a d/c => EPERM
    u11:11 rename d/b d/a => EPERM
    u10:10 rename d/a d/c
    u10:10 rename d/c d/a
    u10:10 mkdir d/dir 0777
    u11:11 rmdir d/dir => EPERM
    u10:10 rmdir d/dir
    # The owner of the directory may.
    chown d 12 12
    u12:12 unlink d/b
    unlink d/a
    u10:10 create d/a 0666
    chmod d 0777
    u11:11 unlink d/a
";

const TRUNCATE: &str = "
    create f 0644
    truncate f 100
    stat f size => 100
    truncate f 5000000
    stat f size => 5000000
    stat f blocks => 0
    truncate f 0
    stat f size => 0
    truncate missing 0 => ENOENT
    truncate f/x 0 => ENOTDIR
    mkdir d 0755
    truncate d 0 => EISDIR
    truncate f 17592186044416
    truncate f 17592186044417 => EFBIG
    truncate f 9223372036854775808 => EINVAL
    stat f size => 17592186044416
    truncate f 3
    chown f 10 20
    u10:20 truncate f 2
    u11:20 truncate f 1 => EACCES
    chmod f 0444
    u10:20 truncate f 1 => EACCES
    truncate f 1
    mark f
    truncate f 7
    changed f => mtime ctime
    mark f
    u11:20 truncate f 9 => EACCES
    changed f => nothing
    # Through a file: what it was opened for counts, not the permissions.
    chmod f 0644
    u10:20 open:w f w
    chmod f 0000
    ftruncate:w 12
    stat f size => 12
    ftruncate:w 9223372036854775808 => EINVAL
    close:w
    open:r f r
    ftruncate:r 1 => EINVAL
    close:r
    # Bytes that were cut off do not come back.
    open:w f rw
    ftruncate:w 0
    write:w abcdef => 6
    ftruncate:w 3
    ftruncate:w 6
    seek:w start 0 => 0
    read:w 2 => `ab`
    seek:w start 0 => 0
    read:w 10 => `abc\0\0\0`
    close:w
    symlink f s
    truncate s 1
    stat f size => 1
";

const UNLINK: &str = "
    create f 0644
    unlink f
    stat f kind => ENOENT
    unlink f => ENOENT
    mkdir d 0755
    unlink d => EISDIR
    unlink d/ => EISDIR
    create f 0644
    unlink f/ => ENOTDIR
    unlink f/x => ENOTDIR
    unlink {256} => ENAMETOOLONG
    unlink / => EISDIR
    unlink . => EISDIR
    link f g
    mark g
    unlink f
    changed g => ctime
    stat g links => 1
    create d/x 0644
    mark d
    unlink d/x
    changed d => mtime ctime
    create d/x 0644
    u10:10 unlink d/x => EACCES
    chmod d 0777
    u10:10 unlink d/x
    symlink g s
    unlink s
    stat g kind => file
    unlink g
    inodes-used => 3
";

const UNLINK_WHILE_OPEN: &str = "
    inodes-used => 2
    open:f f rw,creat 0644
    write:f hello => 5
    unlink f
    stat f kind => ENOENT
    inodes-used => 3
    fstat:f links => 0
    fstat:f size => 5
    seek:f start 0 => 0
    read:f 5 => `hello`
    write:f again => 5
    fsync:f
    ftruncate:f 20000
    # The name is free, and what gets it is another file.
    create f 0644
    stat f size => 0
    inodes-used => 4
    close:f
    inodes-used => 3
    # The same when the name is taken by a rename.
    open:f f rw
    write:f hello => 5
    create g 0644
    rename g f
    stat f size => 0
    seek:f start 0 => 0
    read:f 5 => `hello`
    fstat:f links => 0
    inodes-used => 4
    close:f
    inodes-used => 3
    # Two openers: the last one frees it.
    open:a f r
    open:b f r
    unlink f
    close:a
    inodes-used => 3
    close:b
    inodes-used => 2
    # Dirty pages of a file without names are not written.
    open:f f rw,creat 0644
    zeros:f 0 100000 => 100000
    close:f
    unlink f
    inodes-used => 2
";

const UTIMENS: &str = "
    create f 0644
    utimens f 100 200
    stat f atime => 100
    stat f mtime => 200
    utimens f omit 300
    stat f atime => 100
    stat f mtime => 300
    utimens f now omit
    stat f atime => 0
    stat f mtime => 300
    mark f
    utimens f omit omit
    changed f => nothing
    utimens f 1 2
    changed f => atime mtime ctime
    utimens missing now now => ENOENT
    utimens f/x now now => ENOTDIR
    symlink f s
    lutimens s 5 6
    lstat s mtime => 6
    stat f mtime => 2
    utimens s 7 8
    stat f mtime => 8
    # The owner chooses; whoever may write may say now.
    chown f 10 20
    u10:20 utimens f 1 1
    u11:20 utimens f 1 1 => EPERM
    u11:20 utimens f now omit => EPERM
    u11:20 utimens f now now => EACCES
    chmod f 0664
    u11:20 utimens f now now
    u11:20 utimens f 1 1 => EPERM
    u11:20 utimens f omit omit
    chmod f 0400
    u10:20 utimens f now now
";

const ACCESS: &str = "
    create f 0640
    chown f 10 20
    u10:20 access f rw
    u10:20 access f x => EACCES
    u11:20 access f r
    u11:20 access f w => EACCES
    u11:21 access f r => EACCES
    access f rw
    access f x => EACCES
    chmod f 0001
    access f x
    u10:20 access f x => EACCES
    access missing r => ENOENT
    u11:21 access f x
";

const XATTR: &str = "
    create f 0644
    listxattr f =>
    getxattr f user.a => ENODATA
    setxattr f user.a one
    getxattr f user.a => one
    setxattr f user.a two create => EEXIST
    setxattr f user.b two replace => ENODATA
    setxattr f user.b two create
    setxattr f user.a three replace
    getxattr f user.a => three
    listxattr f => user.a user.b
    removexattr f user.a
    removexattr f user.a => ENODATA
    listxattr f => user.b
    setxattr f noname x => EOPNOTSUPP
    setxattr f other.a x => EOPNOTSUPP
    setxattr f user. x => EINVAL
    setxattr f user.{250} x
    setxattr f user.{251} x => ERANGE
    setxattr f user.long {65536}
    setxattr f user.long {65537} => E2BIG
    setxattr missing user.a x => ENOENT
    # Rights.
    u10:10 setxattr f user.c x => EACCES
    u10:10 getxattr f user.b => two
    chmod f 0600
    u10:10 getxattr f user.b => EACCES
    setxattr f trusted.t x
    u10:10 getxattr f trusted.t => ENODATA
    u10:10 setxattr f trusted.t y => EPERM
    u10:10 removexattr f trusted.t => EPERM
    u10:10 setxattr f security.s y => EPERM
    removexattr f user.long
    removexattr f user.{250}
    listxattr f => trusted.t user.b
    u10:10 listxattr f => user.b
    # A symbolic link has none of those of users.
    symlink f s
    setxattr s user.a x => EPERM
    getxattr s user.a => ENODATA
    setxattr s trusted.a x
    mkdir d 1777
    u10:10 setxattr d user.a x => EPERM
    mark f
    setxattr f user.b three
    changed f => ctime
";

const DESCRIPTORS: &str = "
    open:w f w,creat 0644
    write:w hello => 5
    read:w 5 => EBADF
    skip:w 0 5 => EBADF
    close:w
    open:r f r
    write:r x => EBADF
    pwrite:r 0 x => EBADF
    fallocate:r 0 10 => EBADF
    punch:r 0 10 => EBADF
    read:r 3 => `hel`
    read:r 3 => `lo`
    read:r 3 => ``
    fsync:r
    seek:r current -2 => 3
    read:r 9 => `lo`
    seek:r end -5 => 0
    seek:r end -6 => EINVAL
    seek:r current -1 => EINVAL
    seek:r start 9223372036854775807 => 9223372036854775807
    seek:r current 1 => EINVAL
    read:r 5 => ``
    skip:r 9223372036854775808 1 => EINVAL
    close:r
    # Appending.
    open:a f rw,append
    write:a XY => 2
    pwrite:a 0 Z => 1
    seek:a start 0 => 0
    read:a 20 => `helloXYZ`
    seek:a start 0 => 0
    write:a ! => 1
    seek:a current 0 => 9
    close:a
    # Beyond the end, and beyond the largest size.
    open:w f rw,trunc
    pwrite:w 3 x => 1
    read:w 9 => `\0\0\0x`
    pwrite:w 17592186044416 x => EFBIG
    pwrite:w 9223372036854775808 x => EINVAL
    pwrite:w 17592186044414 abc => 2
    fstat:w size => 17592186044416
    ftruncate:w 4
    zeros:w 0 0 => 0
    fallocate:w 0 0 => EINVAL
    fallocate:w 17592186044416 1 => EFBIG
    fallocate:w 9223372036854775807 1 => EFBIG
    fallocate:w 9223372036854775808 1 => EINVAL
    fallocate:w 0 10000
    fstat:w size => 10000
    fstat:w blocks => 24
    punch:w 1 9999
    fstat:w size => 10000
    seek:w start 0 => 0
    read:w 4 => `\0\0\0\0`
    # Nothing is punched behind the end; what is a hole already becomes no data.
    mark f
    punch:w 12288 4096
    changed f => nothing
    punch:w 1 2
    changed f => mtime ctime
    close:w
    chmod f 6777
    u11:11 open:w f w
    u11:11 fallocate:w 0 10
    close:w
    stat f mode => 0777
    chmod f 0644
    # Direct I/O is aligned.
    open:d f rw,direct
    zeros:d 1 512 => EINVAL
    zeros:d 512 1 => EINVAL
    skip:d 1 512 => EINVAL
    zeros:d 512 512 => 512
    zeros:d 4096 8192 => 8192
    skip:d 0 16384 => 12288
    close:d
    mkdir d 0755
    open:e d r
    read:e 1 => EISDIR
    readdir:e => 0
    close:e
    open:f f r
    readdir:f => ENOTDIR
    close:f
";

/// Holds a file system to every topic, each on a new one.
pub(crate) fn check_all<F: Fs>(make: impl Fn(flashweir_core::executor::Handle) -> F + Copy) {
    for (topic, script) in TOPICS {
        println!("{topic}");
        let script = script.replace("\\0", "\0");
        let mut bed = Bed::mount(MountOptions::default(), make);
        let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
        bed.run(async move {
            Script::run(vfs.clone(), handle, &script).await;
            vfs.unmount().await.expect("everything is closed and can be written");
        });
    }
}

#[test]
fn in_memory() {
    check_all(|_| MemFs::new(MemFsConfig::default()));
}

#[test]
fn in_memory_with_a_slow_disk() {
    check_all(|handle| MemFs::with_disk(MemFsConfig::default(), handle, Duration::from_micros(50)));
}

#[test]
fn a_directory_has_only_so_many_subdirectories_and_a_file_so_many_names() {
    let config = MemFsConfig::default();
    let limits = Limits { links_max: 5, ..config.limits };
    let mut bed = Bed::mount(MountOptions::default(), |_| MemFs::new(MemFsConfig { limits, ..config }));
    let (vfs, handle) = (bed.vfs.clone(), bed.handle.clone());
    bed.run(async move {
        let script = "
            mkdir d 0755
            mkdir d/a 0755
            mkdir d/b 0755
            mkdir d/c 0755
            mkdir d/d 0755 => EMLINK
            mkdir e 0755
            rename e d/e => EMLINK
            rename e d/a
            create f 0644
            link f f2
            link f f3
            link f f4
            link f f5
            link f f6 => EMLINK
        ";
        Script::run(vfs, handle, script).await;
    });
}

#[test]
fn a_mount_for_reading_changes_nothing() {
    let fs = MemFs::new(MemFsConfig::default());
    let below = fs.clone();
    let mut bed = Bed::mount(MountOptions::default(), |_| fs);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let file = root.create("/f").await.unwrap();
        file.write(Source::bytes(b"hello")).await.unwrap();
        file.close().await.unwrap();
        root.mkdir("/d", 0o755).await.unwrap();
        vfs.unmount().await.unwrap();
        // Closed files stay known to a mount; another mount of the same file system begins anew.
    });
    drop(bed);
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let mut bed = Bed::mount(options, |_| below);
    let vfs = bed.vfs.clone();
    bed.run(async move {
        let root = vfs.process(Creds::ROOT);
        let refused = Some(Errno::EROFS);
        assert_eq!(root.mkdir("/e", 0o755).await.err(), refused);
        assert_eq!(root.mkdir("/d", 0o755).await.err(), Some(Errno::EEXIST));
        assert_eq!(root.create("/g").await.err(), refused);
        assert_eq!(root.open("/f", OpenFlags::WRITE, 0).await.err(), refused);
        assert_eq!(root.unlink("/f").await.err(), refused);
        assert_eq!(root.rmdir("/d").await.err(), refused);
        assert_eq!(root.rename("/f", "/g", RenameMode::Replace).await.err(), refused);
        assert_eq!(root.link("/f", "/g").await.err(), refused);
        assert_eq!(root.symlink("f", "/g").await.err(), refused);
        assert_eq!(root.chmod("/f", 0).await.err(), refused);
        assert_eq!(root.chown("/f", None, None, Follow::Yes).await.err(), refused);
        assert_eq!(root.truncate("/f", 0).await.err(), refused);
        assert_eq!(root.utimens("/f", SetTime::Now, SetTime::Now, Follow::Yes).await.err(), refused);
        let set = root.setxattr("/f", "user.a", b"x", XattrMode::Set, Follow::Yes).await;
        assert_eq!(set.err(), refused);
        assert_eq!(root.access("/f", Wish::WRITE).await.err(), refused);
        let before = root.stat("/f", Follow::Yes).await.unwrap();
        let file = root.open("/f", OpenFlags::READ, 0).await.unwrap();
        let mut bytes = [0; 5];
        file.read(Sink::bytes(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"hello");
        file.sync(SyncKind::All).await.unwrap();
        file.close().await.unwrap();
        assert_eq!(root.stat("/f", Follow::Yes).await.unwrap(), before);
        vfs.unmount().await.unwrap();
    });
}
