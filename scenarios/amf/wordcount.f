# WordCount of the AMF paper, figure 12 (append-segments §8.7), in its shape: a task reads a block of the input and writes a small result.
# weir files scenarios/amf/wordcount.f --device amf --format alfs --cache 1536MiB --overprovision 5 --aged --ramp 10s --runtime 60s

set $dir=/wordcount
set $ninputs=80
set $noutputs=400
set $filesize=128m
set $resultsize=1m
set $nthreads=4
set $iosize=64k
set $runtime=60

define fileset name=inputs,path=$dir,size=$filesize,entries=$ninputs,dirwidth=1000000,prealloc=100
define fileset name=outputs,path=$dir,size=$resultsize,entries=$noutputs,dirwidth=1000000,prealloc=50

define process name=wordcount,instances=1
{
  thread name=task,memsize=10m,instances=$nthreads
  {
    flowop openfile name=open-input,filesetname=inputs,fd=1
    flowop readwholefile name=read-input,fd=1,iosize=$iosize
    flowop closefile name=close-input,fd=1
    flowop deletefile name=delete-output,filesetname=outputs
    flowop createfile name=create-output,filesetname=outputs,fd=1
    flowop writewholefile name=write-output,srcfd=1,fd=1,iosize=$iosize
    flowop closefile name=close-output,fd=1
  }
}

run $runtime
