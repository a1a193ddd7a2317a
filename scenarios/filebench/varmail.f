# A mail server with a file for each message, all in one directory; what arrives is made durable.
# Parameters of filebench's personality of this name (version 1.5).

set $dir=/bench
set $nfiles=1000
set $meandirwidth=1000000
set $filesize=cvar(type=cvar-gamma,parameters=mean:16384;gamma:1.5)
set $nthreads=16
set $iosize=1m
set $meanappendsize=16k
set $runtime=60

define fileset name=mails,path=$dir,size=$filesize,entries=$nfiles,dirwidth=$meandirwidth,prealloc=80

define process name=mailserver,instances=1
{
  thread name=worker,memsize=10m,instances=$nthreads
  {
    # A message is deleted, another one arrives.
    flowop deletefile name=delete,filesetname=mails
    flowop createfile name=create,filesetname=mails,fd=1
    flowop appendfilerand name=append-new,iosize=$meanappendsize,fd=1
    flowop fsync name=fsync-new,fd=1
    flowop closefile name=close-new,fd=1
    # One is read and changed.
    flowop openfile name=open-to-change,filesetname=mails,fd=1
    flowop readwholefile name=read-to-change,fd=1,iosize=$iosize
    flowop appendfilerand name=append-changed,iosize=$meanappendsize,fd=1
    flowop fsync name=fsync-changed,fd=1
    flowop closefile name=close-changed,fd=1
    # One is read.
    flowop openfile name=open-to-read,filesetname=mails,fd=1
    flowop readwholefile name=read,fd=1,iosize=$iosize
    flowop closefile name=close-read,fd=1
  }
}

run $runtime
