use super::*;
use crate::filebench::{PERSONALITIES, personality};

const FILES: &str = "define fileset name=f,path=/d,dirwidth=20,entries=10\n";

fn refused(text: &str) -> String {
    parse_model("m.f", text, &[]).expect_err(text).to_string()
}

/// Returns a model with a flowop in its only thread, on line 4.
fn with_flowop(flowop: &str) -> String {
    format!("{FILES}define process name=p {{\n thread name=t {{\n  flowop {flowop}\n }}\n}}\n")
}

#[test]
fn what_is_wrong_is_named_with_line_word_and_what_is_known() {
    let commands = "set, define, eventgen, enable, echo, usage, create, run, psrun, quit";
    let flowops = "createfile, openfile, closefile, deletefile, statfile, fsync, read, readwholefile, write, \
                   writewholefile, appendfile, appendfilerand, aiowrite, aiowait, semblock, sempost, hog, delay, \
                   eventlimit, opslimit, iopslimit, bwlimit, finishoncount, finishonbytes";
    let table: &[(String, String)] = &[
        ("load varmail".into(), format!("m.f:1: `load` is not a known command: known are {commands}")),
        ("\nset mode quit".into(), "m.f:2: `mode` stands where a variable such as $nfiles was expected".into()),
        ("set $a 1".into(), "m.f:1: `1` stands where `=` was expected".into()),
        ("set $a=".into(), "m.f:1: the file ends where a value was expected".into()),
        ("set $a=1\nset $b=$c".into(), "m.f:2: `$c` is not a known variable: known are $a".into()),
        ("set $b=$c".into(), "m.f:1: `$c` is not a known variable; there is none".into()),
        (
            "set $a=cvar(type=cvar-normal,parameters=mean:1)".into(),
            "m.f:1: `cvar-normal` is not a known type of cvar: known are cvar-gamma".into(),
        ),
        (
            "set $a=cvar(type=cvar-gamma,parameters=sigma:1)".into(),
            "m.f:1: `sigma` is not a known parameter of cvar-gamma: known are mean, gamma".into(),
        ),
        (
            "set $a=cvar(type=cvar-gamma,parameters=mean:16k;gamma:1)".into(),
            "m.f:1: `mean` cannot be `16k`: expected a number above 0".into(),
        ),
        (
            "set $a=cvar(type=cvar-gamma,min=8,max=4)".into(),
            "m.f:1: `max` cannot be `4`: expected 8 or more".into(),
        ),
        ("echo \"x".into(), "m.f:1: the file ends where a closing quotation mark was expected".into()),
        ("enable multi".into(), "m.f:1: `multi` is not a known feature to enable: known are lathist".into()),
        ("run 0".into(), "m.f:1: `run` cannot be `0`: expected whole seconds from 1 on".into()),
        ("define randvar name=$x".into(), {
            "m.f:1: `randvar` is not a known thing to define: known are file, fileset, process".into()
        }),
        ("define fileset name=f,dirwidth=3".into(), "m.f:1: fileset `f` needs `path`".into()),
        ("define fileset name=f,path=/d".into(), "m.f:1: fileset `f` needs `dirwidth`".into()),
        (
            "define fileset name=f,\n path=/d,dirwidth=1".into(),
            "m.f:2: `dirwidth` cannot be `1`: expected a whole number from 2 to 1099511627776, such as 20 or 16k".into(),
        ),
        (
            "define fileset name=f,path=/d,dirwidth=3,prealloc=101".into(),
            "m.f:1: `prealloc` cannot be `101`: expected a whole number from 0 to 100, such as 20 or 16k".into(),
        ),
        (
            "define fileset name=f,path=/d,dirwidth=3,size".into(),
            "m.f:1: `size` needs a value: expected a whole number from 0 to 1125899906842624, such as 20 or 16k".into(),
        ),
        (
            "define fileset name=a/b,path=/d,dirwidth=3".into(),
            "m.f:1: `name` cannot be `a/b`: expected one name of a path".into(),
        ),
        (format!("{FILES}{FILES}"), "m.f:2: fileset `f` is defined twice".into()),
        (
            "define file name=f,path=/d,entries=2".into(),
            "m.f:1: `entries` is not a known attribute of file: known are name, path, size, filesize, prealloc, \
             paralloc, reuse, readonly, writeonly, cached, trusttree, dirgamma"
                .into(),
        ),
        (FILES.into(), "m.f: a model needs at least one process: `define process name=...`".into()),
        ("define process name=p {}".into(), "m.f:1: process `p` needs a thread".into()),
        ("define process name=p {\n thread name=t {}}".into(), "m.f:2: thread `t` needs a flowop".into()),
        ("define process name=p {\n thread name=t".into(), "m.f:2: the file ends where `{` was expected".into()),
        (with_flowop("listdir name=l"), format!("m.f:4: `listdir` is not a known flowop: known are {flowops}")),
        (with_flowop("read fd=1"), "m.f:4: flowop needs `name`".into()),
        (with_flowop("read name=r,iosize=1k"), "m.f:4: flowop `r` (read) needs `filesetname`".into()),
        (with_flowop("read name=r,fd=1"), "m.f:4: flowop `r` (read) needs `iosize` above 0".into()),
        (
            with_flowop("read name=r,filesetname=g,iosize=1k"),
            "m.f:4: `g` is not a known fileset: known are f".into(),
        ),
        (
            with_flowop("read name=r,filesetname=f,iosize=1k,random=maybe"),
            "m.f:4: `random` cannot be `maybe`: expected true, false, 1 or 0".into(),
        ),
        (
            with_flowop("aiowrite name=w,filesetname=f,iosize=1k"),
            "m.f:4: flowop `w` (aiowrite) needs `random`: asynchronous writes have no position".into(),
        ),
        (with_flowop("hog name=h"), "m.f:4: flowop `h` (hog) needs `value`".into()),
        (with_flowop("sempost name=s,value=1"), "m.f:4: flowop `s` (sempost) needs `target`".into()),
        (
            with_flowop("sempost name=s,value=1,target=x"),
            "m.f:4: `x` is not a known semblock; there is none".into(),
        ),
        (
            with_flowop("finishoncount name=s,value=1,target=x"),
            "m.f:4: `x` is not a known flowop of this thread: known are s".into(),
        ),
    ];
    for (text, message) in table {
        assert_eq!(&refused(text), message, "{text}");
    }
    let unset = parse_model("m.f", &with_flowop("hog name=h,value=1"), &[("n", "1")]).unwrap_err();
    assert_eq!(unset.to_string(), "m.f: `$n` is not a known variable; there is none");
}

#[test]
fn a_model_is_what_its_file_says() {
    let text = r#"
        # A comment, "with quotes".
        set $size = cvar(type=cvar-gamma,parameters=mean:131072;gamma:1.5,min=1k)
        set $n=2
        set $threads=$n
        eventgen rate = 100
        enable lathist
        define fileset name=f,path=/d,size=$size,entries=10,dirwidth=20,prealloc
        define file name=log,path=/d,size=1m,reuse
        define process name=p,instances=$n
        {
          thread name=t,memsize=10m,instances=$threads
          {
            flowop openfile name=o,filesetname=f,fd=1
            flowop write name=w,fd=1,iosize=16K,random,directio=0,dsync,
                   iters=3,workingset=1g
            flowop closefile name=c,fd=1
            flowop opslimit name=l,target=w
          }
        }
        echo "n is $n, \$n is $other"
        usage "quoted \"n\""
        psrun -5 30
        quit
        whatever comes now
    "#;
    let model = parse_model("m.f", text, &[("n", "3")]).unwrap();
    let [files, log] = &model.filesets[..] else { panic!("{model:?}") };
    assert_eq!(files.size, Amount::Gamma(Gamma { min: 1024.0, ..Gamma::new(131_072.0, 1.5) }));
    assert_eq!((files.entries, files.dir_width, files.dir_gamma, files.prealloc_percent), (10, 20, 1.5, 100));
    assert!(log.is_file && log.reuse && !files.reuse);
    assert_eq!((log.entries, log.size, log.prealloc_percent), (1, Amount::Fixed(1 << 20), 0));
    let process = &model.processes[0];
    assert_eq!((process.instances, process.threads[0].instances, model.thread_count()), (3, 3, 9));
    let [open, write, close, limit] = &process.threads[0].flowops[..] else { panic!("{process:?}") };
    assert_eq!((open.op, open.fileset, open.fd, close.fd), (Op::OpenFile, Some(0), 1, 1));
    assert_eq!((write.iosize, write.iters, write.working_set), (Amount::Fixed(16_384), 3, 1 << 30));
    assert!(write.is_random && write.is_dsync && !write.is_direct);
    assert_eq!(limit.target, Some(1));
    assert_eq!((model.event_rate, model.runtime), (Some(100), Some(Duration::from_secs(30))));
    assert_eq!(model.remarks, ["n is 3, 3 is $other", "quoted \"n\""]);
}

#[test]
fn the_personalities_are_models_with_their_parameters() {
    for (name, text) in PERSONALITIES {
        let model = parse_model(name, text, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.runtime, Some(Duration::from_secs(60)), "{name}");
        let entries: Vec<u64> = model.filesets.iter().map(|fileset| fileset.entries).collect();
        let flowops = model.flowops().count();
        let expected: (&[u64], u64, usize) = match name {
            "fileserver" => (&[10_000], 50, 11),
            "varmail" => (&[1000], 16, 13),
            "webserver" => (&[1000, 1], 100, 31),
            _ => (&[10, 1], 211, 12),
        };
        assert_eq!((&entries[..], model.thread_count(), flowops), expected, "{name}");
    }
    assert!(personality("varmail").is_some() && personality("mail").is_none());
    let set = [("nfiles", "50"), ("directio", "1")];
    let oltp = parse_model("oltp.f", personality("oltp").unwrap(), &set).unwrap();
    assert_eq!(oltp.filesets[0].entries, 50);
    assert!(oltp.flowops().filter(|(_, _, flowop)| flowop.is_direct).count() == 3);
}
