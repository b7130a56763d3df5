#!/bin/busybox sh
# The init of the guest of `cargo xtask power-cut`. For each place: `adit check` of the state that the
# last power cut left, then a program that verifies this state and, after a `go`, commits. Reports go
# to the host, one write a line; standard error goes to the console.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /tmp /mnt
mount -t tmpfs tmpfs /dev/shm
while read -r module; do
    insmod "/modules/$module" || echo "could not load $module"
done < /modules/order
while ! [ -b /dev/vda ] || ! [ -b /dev/vdb ] || ! [ -b /dev/nvme0n1 ] || ! [ -c /dev/vport0p1 ]; do
    sleep 0.1
done
exec 3<> /dev/vport0p1

# place NAME PROGRAM...: runs a program that only a power cut ends.
place() {
    name=$1
    shift
    "$@" >&3
    echo "bad $name: $1 ended ($?), see the console" >&3
}

# volume NAME ADDRESS PROGRAM...: the same after a check.
volume() {
    checked=$1
    if adit check "$2" > "/tmp/$1" 2>&1; then
        echo "clean $1" >&3
    else
        echo "bad $1 adit check: $(tr '\n' ' ' < "/tmp/$1")" >&3
    fi
    shift 2
    place "$checked" "$@"
}

mount -t ext4 /dev/vda /mnt || echo "bad control could not mount ext4, see the console" >&3
rocksdb="env LD_PRELOAD=/lib/libadit_rocksdb.so ADIT_CACHE=16M kill_test power-cut"
place control adit-power-cut directory /mnt/control control &
volume image /mnt/image.adit adit-power-cut volume /mnt/image.adit image &
volume disk /dev/vdb adit-power-cut volume /dev/vdb disk &
volume image-rocksdb /mnt/rocksdb.adit $rocksdb /mnt/rocksdb.adit image-rocksdb &
volume disk-rocksdb /dev/nvme0n1 $rocksdb /dev/nvme0n1 disk-rocksdb &
# The host has heard of all; before it is connected, a read fails.
until read -r go <&3; do
    sleep 0.1
done
: > /tmp/go
wait
# The kernel panics if init ends.
while true; do sleep 1000; done
