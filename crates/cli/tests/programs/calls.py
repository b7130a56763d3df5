"""Calls what Python programs call, on a volume that they see as /adit. argv[1]: a tree of the host."""
import errno, fcntl, filecmp, glob, mmap, os, shutil, stat, subprocess, sys, tempfile

P = "/adit"
TREE = os.path.abspath(sys.argv[1])


def fails(code, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except OSError as error:
        assert error.errno == code, error
    else:
        assert False, (call, arguments)


def same(one, other):
    found = filecmp.dircmp(one, other)
    assert not (found.left_only or found.right_only or found.diff_files), found.report()


os.mkdir(P + "/d")
os.chdir(P + "/d")
assert os.getcwd() == P + "/d"
with open("a", "w") as file:
    file.write("hello\n")
with open(P + "/d/a") as file:
    assert file.read() == "hello\n"
assert os.listdir(".") == ["a"] and os.listdir(P) == ["d"]

# Content, positions, duplicates.
fd = os.open("b", os.O_RDWR | os.O_CREAT, 0o640)
assert os.write(fd, b"x" * 10000) == 10000 and os.pread(fd, 5, 9998) == b"xx"
assert os.lseek(fd, -1, os.SEEK_END) == 9999 and os.read(fd, 10) == b"x"
os.ftruncate(fd, 5)
os.fsync(fd)
os.fdatasync(fd)
assert os.fstat(fd).st_size == 5 and stat.S_IMODE(os.stat("b").st_mode) == 0o640
other = os.dup(fd)
os.lseek(other, 2, os.SEEK_SET)
os.dup2(fd, 50)
os.close(fd)
assert os.read(50, 9) == b"xxx"
os.close(50)
os.writev(other, [b"ab", b"cd"])
assert os.preadv(other, [bytearray(3)], 4) == 3
fcntl.fcntl(other, fcntl.F_SETFL, os.O_APPEND)
os.pwrite(other, b"zz", 0)
assert os.fstat(other).st_size == 11

# Locks.
fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
second = os.open("b", os.O_RDWR)
fails(errno.EAGAIN, fcntl.flock, second, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.close(other)
fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(second, fcntl.LOCK_EX, 10, 5)
os.close(second)

# Names and links.
os.rename("b", "c")
os.link("c", "e")
os.symlink("c", "l")
os.symlink(P + "/d/c", "absolute")
os.symlink("/etc/passwd", "out")
assert os.stat("c").st_nlink == 2 and os.readlink("l") == "c" and os.lstat("l").st_size == 1
assert os.stat("absolute").st_ino == os.stat("c").st_ino
assert os.path.realpath("absolute") == P + "/d/c"
fails(errno.EXDEV, open, "out")
fails(errno.EXDEV, os.rename, "c", "/tmp/adit-elsewhere")
fails(errno.EXDEV, os.link, "/etc/passwd", "passwd")
fails(errno.ENOENT, os.stat, "nothing")
fails(errno.EEXIST, os.mkdir, P + "/d")
fails(errno.ENOTEMPTY, os.rmdir, P + "/d")
for path in ("../../etc/passwd", "/adit/../etc/passwd"):
    with open(path) as inside, open("/etc/passwd") as outside:
        assert inside.read() == outside.read()

# Attributes.
os.setxattr("c", "user.k", b"v")
assert os.getxattr("c", "user.k") == b"v" and os.listxattr("c") == ["user.k"]
os.removexattr("c", "user.k")
os.utime("c", (1, 2.5))
os.chmod("c", 0o600)
found = os.stat("c")
assert (found.st_atime, found.st_mtime, stat.S_IMODE(found.st_mode)) == (1, 2.5, 0o600)
os.truncate("c", 3)
assert os.stat("c").st_size == 3 and os.statvfs(P).f_namemax == 255
fd = os.open("c", os.O_RDWR)
assert mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:3] == b"xxx"
with mmap.mmap(fd, 3) as shared:
    shared[1:2] = b"m"
    assert os.pread(fd, 3, 0) == b"xmx"

# Temporary files, directories.
with tempfile.NamedTemporaryFile(dir=P) as file:
    file.write(b"1")
    file.flush()
    assert os.stat(file.name).st_size == 1
with tempfile.TemporaryFile(dir=P) as file:
    file.write(b"2")
    file.seek(0)
    assert file.read() == b"2"
for i in range(300):
    with open(f"f{i:04}", "w") as file:
        file.write(str(i))
assert len(glob.glob("/adit/d/f*")) == 300
assert sorted(entry.name for entry in os.scandir(".") if entry.name[0] == "f")[7] == "f0007"
directory = os.open(P + "/d", os.O_RDONLY | os.O_DIRECTORY)
fd = os.open("f0100", os.O_RDONLY, dir_fd=directory)
assert os.read(fd, 9) == b"100"
os.rename(P + "/d", P + "/d2")
assert os.stat("f0003", dir_fd=directory).st_size == 1 and len(os.listdir(directory)) > 300
os.chdir("/")
assert os.getcwd() == "/"

# Copies between the volume and the host.
big = os.open(P + "/big", os.O_RDWR | os.O_CREAT)
content = os.urandom(3 << 20)
os.write(big, content)
with tempfile.TemporaryFile() as host:
    os.lseek(big, 0, os.SEEK_SET)
    while os.sendfile(host.fileno(), big, None, 1 << 22):
        pass
    host.seek(0)
    assert host.read() == content
copy = os.open(P + "/copy", os.O_RDWR | os.O_CREAT)
done = 0
while done < len(content):
    done += os.copy_file_range(big, copy, len(content), done, done)
assert os.pread(copy, len(content), 0) == content
os.posix_fallocate(copy, 0, 4 << 20)
os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
assert os.fstat(copy).st_size == 4 << 20 and os.lseek(copy, 0, os.SEEK_DATA) == 0

# Children have what is open here, with its position.
os.lseek(big, 0, os.SEEK_SET)
child = os.fork()
if child == 0:
    os._exit(0 if os.read(big, 1) == content[:1] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert subprocess.run(["echo", "hi"], capture_output=True).stdout == b"hi\n"
catted = subprocess.run(["cat"], stdin=big, capture_output=True)
assert catted.stdout == content[1:]
os.closerange(3, 200)
assert sorted(os.listdir(P)) == ["big", "copy", "d2"]
shutil.rmtree(P + "/d2")
shutil.copytree(TREE, P + "/tree")
same(TREE, P + "/tree")
shutil.move(P + "/tree", P + "/moved")
same(TREE, P + "/moved")
print("as on Linux")
