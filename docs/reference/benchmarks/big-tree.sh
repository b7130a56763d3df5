#!/bin/sh
# A volume of many files, in directories of 4000: a check, du, and rm -r of half of it. Seconds, the
# medians of RUNS, and the most memory in MiB. Needs GNU time, and room for two images of 600 bytes
# a file.
#
#     big-tree.sh FOLDER ADIT [FILES]
set -eu
folder=$1 adit=$2 files=${3:-4000000} runs=${RUNS:-3}
image=$folder/big-tree.adit copy=$folder/big-tree-copy.adit
trap 'rm -f "$image" "$copy"' EXIT

"$adit" mkfs "$image" --size "$((files / 500000 + 1))G" >/dev/null
"$adit" run "$image" --cache-size 1G -- sh -eu -c '
    half=$(($1 / 8000))
    for side in a b; do
        mkdir "/adit/$side"
        for directory in $(seq "$half"); do
            mkdir "/adit/$side/$directory"
            seq -f "/adit/$side/$directory/file%06.0f" 4000 | xargs touch
        done
    done' sh "$files"

row() {
    name=$1
    shift
    for _ in $(seq "$runs"); do
        [ "$name" != rm ] || cp --sparse=always "$image" "$copy"
        /usr/bin/time -a -o "$folder/big-tree.times" -f "%e %M" "$@" >/dev/null
    done
    sort -n "$folder/big-tree.times" | awk -v name="$name" '
        { seconds[NR] = $1; if ($2 > most) most = $2 }
        END { printf "%s %.1f s %d MiB\n", name, seconds[int((NR + 1) / 2)], most / 1024 }'
    rm "$folder/big-tree.times"
}

row check "$adit" check "$image"
row du "$adit" du -s "$image"
row rm "$adit" rm -r "$copy" /a
