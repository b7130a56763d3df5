#!/bin/bash
# Real programs on a mount of Adit. Usage: workloads.sh ADIT DIRECTORY SOURCES [NAME]...
# After each workload the volume is unmounted and must be clean.
set -eu
adit=$1 ground=$2 sources=$3
shift 3
[ $# -gt 0 ] || set -- git tree fio stress mariadb kill cut
image=$ground/volume.adit mount=$ground/mount

start() { "$adit" mount "$image" "$mount" --allow-other; }

# Ends when the volume is closed, which is a moment after the mount is gone.
stop() {
    umount "$mount"
    for try in 1 2 3 4 5 6 7 8 9 10; do
        "$adit" check "$image" && return
        sleep 0.5
    done
    return 1
}

# A repository with thousands of files: add, commit, gc, fsck, clone.
work_git() {
    local repository=$mount/repository clone=$mount/clone
    rm -rf "$repository" "$clone"
    git init -q "$repository"
    cd "$repository"
    git config user.email nobody@example.com
    git config user.name nobody
    cp -r "$sources"/crates "$sources"/docs "$sources"/plugins .
    for directory in $(seq 60); do
        mkdir -p "d$directory"
        for file in $(seq 60); do echo "$directory $file $RANDOM" >"d$directory/f$file"; done
    done
    git add -A
    git commit -qm one
    for change in $(seq 10); do
        echo "$change" >>"d$change/f1"
        git commit -qam "change $change"
    done
    git gc -q
    git fsck --full --no-progress
    git clone -q . "$clone"
    cd "$clone"
    git fsck --no-progress
    [ -z "$(git status --porcelain)" ]
    find . -type f | wc -l
}

# 50,000 small files by tar and rsync, in and out; equal each time.
work_tree() {
    local source=$ground/tree
    rm -rf "$source" "$ground/back" "$mount/tar" "$mount/rsync"
    python3 - "$source" <<'PY'
import os, random, sys
base, random = sys.argv[1], random.Random(5)
for d in range(250):
    path = f'{base}/d{d % 25}/e{d}'
    os.makedirs(path)
    for f in range(200):
        with open(f'{path}/f{f}', 'wb') as file:
            file.write(random.randbytes(random.choice([0, 1, 13, 100, 1000, 4096, 5000])))
os.symlink('d0/e0/f1', base + '/link')
os.link(base + '/d0/e0/f2', base + '/hard')
os.chmod(base + '/d0/e0/f3', 0o4711)
os.utime(base + '/d0/e0/f4', (1, 2))
with open(base + '/sparse', 'wb') as file:
    file.truncate(100 << 20)
    file.seek(50 << 20)
    file.write(b'x' * 5000)
PY
    mkdir "$mount/tar"
    tar -C "$source" -cf - . | tar -C "$mount/tar" -xf -
    rsync -aHX "$source/" "$mount/rsync/"
    diff -r --no-dereference "$source" "$mount/tar"
    diff -r --no-dereference "$source" "$mount/rsync"
    rsync -aHX "$mount/rsync/" "$ground/back/"
    diff -r --no-dereference "$source" "$ground/back"
    # Nothing left to do: attributes are equal too.
    [ -z "$(rsync -aHXni --delete "$source/" "$mount/rsync/")" ]
    [ -z "$(rsync -aHXni --delete "$source/" "$ground/back/")" ]
    tar -C "$mount/tar" -cf - . | tar -C "$source" --compare -f -
    rm -rf "$mount/tar" "$mount/rsync" "$ground/back" "$source"
}

work_fio() {
    cd "$ground"
    for engine in psync mmap libaio; do
        direct=0
        [ $engine = libaio ] && direct=1
        fio --name=verify --directory="$mount" --ioengine=$engine --direct=$direct --iodepth=16 --rw=randwrite \
            --bs=4k-64k --size=128M --numjobs=2 --verify=crc32c --do_verify=1 --verify_fatal=1 \
            --verify_state_save=0 --end_fsync=1 --group_reporting --minimal >"$ground/fio.log"
        rm -f "$mount"/verify.*
        echo "fio $engine: verified"
    done
}

work_stress() {
    mkdir -p "$mount/stress"
    # inotify by itself: beside forty others on two cores its own time limits run out, on ext4 too.
    stress-ng --class filesystem --all 1 --exclude inotify --timeout 120 --verify --temp-path "$mount/stress" 2>&1 | tail -3
    [ "${PIPESTATUS[0]}" = 0 ]
    stress-ng --inotify 1 --timeout 20 --verify --temp-path "$mount/stress" 2>&1 | tail -1
    [ "${PIPESTATUS[0]}" = 0 ]
}

data=$mount/mysql socket=/tmp/adit-workload-$$.sock
load="sysbench oltp_read_write --mysql-socket=$socket --mysql-user=root --tables=4 --table-size=50000 --threads=4"

serve() {
    mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$socket" --skip-networking \
        --innodb-buffer-pool-size=64M --innodb-flush-method=fsync --pid-file="$socket.pid" >"$ground/mariadb.log" 2>&1 &
    server=$!
    until mariadb-admin --socket="$socket" ping >/dev/null 2>&1; do kill -0 $server && sleep 0.2; done
}

# A database under load, killed, recovered and under load again.
work_mariadb() {
    rm -rf "$data"
    mkdir "$data"
    chown mysql:mysql "$data"
    mariadb-install-db --user=mysql --datadir="$data" --skip-test-db >/dev/null 2>&1
    serve
    mariadb --socket="$socket" -e 'create database sbtest'
    $load prepare >/dev/null
    ($load --time=35 run >"$ground/sysbench.log" 2>&1 || true) &
    sleep 30
    kill -9 $server
    wait || true
    serve
    $load --time=30 run | grep -E 'transactions:|95th'
    if mariadb-check --socket="$socket" --all-databases --check --extended | grep -v ' OK$'; then return 1; fi
    mariadb-admin --socket="$socket" shutdown
    wait $server
}

# The process of the mount is killed under a writer, ten times; what was acknowledged must be there.
work_kill() {
    cat >"$ground/writer.py" <<'PY'
import os, random, sys
base, log, random = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), random.Random(int(sys.argv[3]))
name = lambda: f'{base}/f{random.randrange(200)}'
os.makedirs(base, exist_ok=True)
os.write(log, b'begun\n')
count = 0
try:
    while True:
        count += 1
        path, what = name(), random.randrange(4)
        if what == 0:
            try:
                os.unlink(path)
                os.write(log, f'unlink {path}\n'.encode())
            except FileNotFoundError:
                pass
        elif what == 1:
            to = name()
            try:
                os.rename(path, to)
                os.write(log, f'rename {path} {to}\n'.encode())
            except FileNotFoundError:
                pass
        else:
            data = (f'{count:08d}' * random.randrange(1, 3000)).encode()
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(log, f'open {path}\n'.encode())
            os.write(file, data)
            os.write(log, f'wrote {path} {count} {len(data)}\n'.encode())
            os.close(file)
except OSError:
    pass
PY
    cat >"$ground/judge.py" <<'PY'
import os, sys
base, files = sys.argv[1], {}
for line in open(sys.argv[2]):
    what, *rest = line.split()
    if what == 'unlink':
        files.pop(rest[0], None)
    elif what == 'rename' and rest[0] != rest[1]:
        files[rest[1]] = files.pop(rest[0])
    elif what == 'open':
        files[rest[0]] = None
    elif what == 'wrote':
        files[rest[0]] = (int(rest[1]), int(rest[2]))
wrong = []
for path, written in files.items():
    if written is None:
        continue
    try:
        data = open(path, 'rb').read()
    except FileNotFoundError:
        data = None
    if data != (f'{written[0]:08d}' * (written[1] // 8)).encode():
        wrong.append(path)
extra = [f'{base}/{name}' for name in os.listdir(base) if f'{base}/{name}' not in files]
print(f'{len(files)} files; differing: {wrong}, unknown: {extra}')
# What was under way may have happened without having been acknowledged: it concerns one or two names.
sys.exit(len(wrong) > 1 or len(extra) > 1)
PY
    for round in $(seq 10); do
        rm -rf "$mount/kill"
        python3 "$ground/writer.py" "$mount/kill" "$ground/writer.log" "$round" &
        local writer=$!
        until grep -q begun "$ground/writer.log" 2>/dev/null; do sleep 0.1; done
        sleep "$((RANDOM % 3)).$((RANDOM % 10))"
        kill -9 "$(pgrep -f "mount $image")"
        wait $writer || true
        rm -f "$ground/writer.log.old"
        start
        python3 "$ground/judge.py" "$mount/kill" "$ground/writer.log"
        : >"$ground/writer.log"
        stop
        start
    done
}

# Each workload again, with the process of the mount killed in the middle. The volume must be clean then, and the
# programs must get on with what is there. Arguments: a workload, and seconds until the kill.
cut() {
    local name=$1 after=$2 work
    set -m
    ("work_$name") >"$ground/cut.log" 2>&1 &
    work=$!
    set +m
    sleep "$after"
    if ! kill -0 $work 2>/dev/null; then
        echo "cut $name: ended before it was cut"
        return
    fi
    kill -9 "$(pgrep -f "mount $image")"
    sleep 1
    kill -9 -- -$work 2>/dev/null || true
    wait $work || true
    start
    stop
    start
    (
        set -e
        "after_$name"
    )
    stop
    start
    echo "cut $name: after $after s"
}

# What was committed is whole, and work can go on.
after_git() {
    cd "$mount/repository"
    # It may have been cut before, or while the one before was removed.
    git init -q
    find .git -name '*.lock' -delete
    if git rev-parse -q --verify HEAD >/dev/null; then git fsck --full --no-progress; fi
    git config user.email nobody@example.com
    git config user.name nobody
    git add -A
    git commit -qm 'after the cut' --allow-empty
    git gc -q
    git fsck --full --no-progress
}

# A second rsync completes the copy.
after_tree() {
    rsync -aHX "$ground/tree/" "$mount/rsync/"
    diff -r --no-dereference "$ground/tree" "$mount/rsync"
    rm -rf "$mount/tar" "$mount/rsync"
}

after_fio() { rm -f "$mount"/verify.*; }
after_stress() { rm -rf "$mount/stress"; }

# It recovers, is whole, and takes writes.
after_mariadb() {
    serve
    if mariadb-check --socket="$socket" --all-databases --check --extended | grep -v ' OK$'; then return 1; fi
    if mariadb --socket="$socket" -N -e 'select count(*) from sbtest.sbtest4' >/dev/null 2>&1; then
        $load --time=5 run | grep transactions:
    fi
    mariadb-admin --socket="$socket" shutdown
    wait "$server"
}

work_cut() {
    local round
    for round in 1 2 3; do
        cut git "$((2 + RANDOM % 20))"
        cut tree "$((10 + RANDOM % 50))"
        cut fio "$((2 + RANDOM % 6))"
        cut stress "$((5 + RANDOM % 40))"
        cut mariadb "$((8 + RANDOM % 30))"
    done
}

trap 'cd /; umount "$mount" 2>/dev/null || true' EXIT
umount "$mount" 2>/dev/null || true
rm -rf "$ground"
mkdir -p "$mount"
"$adit" mkfs "$image" --size 8G
for name in "$@"; do
    echo "=== $name"
    start
    (
        set -e
        "work_$name"
    )
    stop
done
rm -rf "$ground"
echo "all workloads passed: $*"
