#!/bin/sh
# fio on ext4, and unmodified on Adit (`adit run`), in turn on the same device: µs a request, the
# medians of RUNS. As root, with fio 3.33 and the release build; destroys what is on the device.
#
#     programs.sh DEVICE|IMAGE ADIT [ROWS]      IMAGE: a path in the file system to compare with
#
# A device is formatted for each side; beside an image lies a directory of the same file system.
set -eu
target=$1 adit=$2 rows=${3:-.} runs=${RUNS:-3} seconds=${SECONDS_EACH:-1} size=${SIZE:-256m}
work=$(mktemp -d) mounted=
trap 'cd /; [ -z "$mounted" ] || umount "$work/ext4"; rm -rf "$work" "$target.ext4"' EXIT

# Name, and fio's arguments.
table() {
    cat <<'ROWS'
psync-randread --ioengine=psync --rw=randread --pre_read=1
psync-randwrite --ioengine=psync --rw=randwrite --pre_read=1
psync-randwrite-fdatasync --ioengine=psync --rw=randwrite --fdatasync=1 --pre_read=1
psync-direct-randread --ioengine=psync --rw=randread --direct=1
psync-direct-randwrite --ioengine=psync --rw=randwrite --direct=1
mmap-randread --ioengine=mmap --rw=randread --pre_read=1
ROWS
    for rw in randread randwrite; do
        for depth in 1 4 16 64 128; do
            echo "libaio-direct-$rw-$depth --ioengine=libaio --rw=$rw --direct=1 --iodepth=$depth"
        done
        for depth in 1 16; do
            echo "posixaio-direct-$rw-$depth --ioengine=posixaio --rw=$rw --direct=1 --iodepth=$depth"
        done
    done
}

# µs a request of the job's own direction, syncs included.
measure() {
    name=$1 directory=$2
    shift 2
    "$@" fio --name=row --filename="$directory/file" --size="$size" --bs=4k --thread --norandommap \
        --random_generator=lfsr --time_based --runtime="$seconds" --invalidate=0 --output-format=terse --terse-version=3 \
        --group_reporting $(table | sed -n "s/^$name //p") 2>/dev/null |
        awk -F';' 'NF > 50 { requests = $8 + $49; if (requests > 0) printf "%.2f\n", 1000000 / requests }'
}

lay() {
    "$@" fio --name=lay --filename="$directory/file" --size="$size" --bs=1m --rw=write --end_fsync=1 --thread \
        --output-format=terse >/dev/null 2>&1
}

prepare() {
    if [ "$1" = ext4 ]; then
        directory=$work/ext4 run=
        mkdir -p "$directory"
        if [ -b "$target" ]; then
            mkfs.ext4 -qF -E nodiscard "$target" && mount "$target" "$directory" && mounted=1
        else
            directory=$target.ext4 && mkdir -p "$directory"
        fi
    else
        directory=/adit run="$adit run $target --cache-size 1G --"
        "$adit" mkfs "$target" --force --size "$([ -b "$target" ] && blockdev --getsize64 "$target" || echo 2G)" >/dev/null
    fi
    lay $run
}

for side in ext4 adit; do
    prepare $side
    table | cut -d' ' -f1 | grep -E "$rows" | while read -r name; do
        turn=0
        while [ $turn -lt "$runs" ]; do
            measure "$name" "$directory" $run >>"$work/$side-$name"
            turn=$((turn + 1))
        done
    done
    [ -z "$mounted" ] || { umount "$work/ext4" && mounted=; }
done
echo "| row | Adit | ext4 | ext4 / Adit |"
echo "|---|---|---|---|"
median() { sort -n "$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
table | cut -d' ' -f1 | grep -E "$rows" | while read -r name; do
    ours=$(median "$work/adit-$name") theirs=$(median "$work/ext4-$name")
    echo "| $name | $ours | $theirs | $(awk "BEGIN { printf \"%.2f\", $theirs / $ours }") |"
done
