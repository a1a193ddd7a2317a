# HFSIO of the AMF paper, figure 12 (append-segments §8.7), in its shape: tasks of Hadoop write files of one HDFS block, and read others.
# weir files scenarios/amf/hfsio.f --device amf --format alfs --cache 1536MiB --overprovision 5 --aged --ramp 10s --runtime 60s

set $dir=/hfsio
set $nfiles=100
set $filesize=128m
set $nthreads=4
set $iosize=64k
set $runtime=60

define fileset name=blocks,path=$dir,size=$filesize,entries=$nfiles,dirwidth=1000000,prealloc=80

define process name=hfsio,instances=1
{
  thread name=task,memsize=10m,instances=$nthreads
  {
    flowop deletefile name=delete,filesetname=blocks
    flowop createfile name=create,filesetname=blocks,fd=1
    flowop writewholefile name=write,srcfd=1,fd=1,iosize=$iosize
    flowop closefile name=close-written,fd=1
    flowop openfile name=open-to-read,filesetname=blocks,fd=1
    flowop readwholefile name=read,fd=1,iosize=$iosize
    flowop closefile name=close-read,fd=1
  }
}

run $runtime
