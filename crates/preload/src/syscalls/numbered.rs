//! System calls by number (`syscall`) that name paths, or descriptors: those of programs that have a
//! number for what the C library has no function for, or had none.
//!
//! Each is done as the C library's function of that name, which is ours. A call that the kernel has
//! with fewer flags than the function has none here.

use crate::calls::{execveat, getdents64};
use crate::files::descriptors;
use crate::files::path::{self, Location};
use crate::program::Words;
use crate::runtime::answer::failed;
use crate::runtime::inside;
use crate::runtime::message::say_once;
use crate::runtime::real::text;
use crate::volume::{self, identity};
use adit::Errno;
use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, dev_t, mode_t, msghdr, off_t, size_t, sockaddr,
    socklen_t, timespec,
};

/// Arguments of a system call.
pub(crate) type Arguments = [usize; 6];

/// `number: function(argument as type, …)`, in the order of the call's arguments.
macro_rules! calls {
    (
        $(every $everywhere:ident: $function:ident($($type:ty),*);)*
        $(old $old:ident: $old_function:ident($($old_type:ty),*);)*
    ) => {
        /// Their numbers.
        pub(crate) const NUMBERS: &[c_long] = &[
            $(libc::$everywhere,)*
            $(#[cfg(target_arch = "x86_64")] libc::$old,)*
            libc::SYS_execveat,
            libc::SYS_openat2,
            libc::SYS_utimensat,
            libc::SYS_faccessat,
            libc::SYS_fadvise64,
            libc::SYS_fchmodat,
            libc::SYS_getcwd,
            libc::SYS_getdents64,
            libc::SYS_preadv2,
            libc::SYS_pselect6,
            libc::SYS_pwritev2,
            libc::SYS_io_uring_setup,
            libc::SYS_setfsuid,
            libc::SYS_setfsgid,
            libc::SYS_setuid,
            libc::SYS_setgid,
            libc::SYS_setreuid,
            libc::SYS_setregid,
            libc::SYS_setresuid,
            libc::SYS_setresgid,
            libc::SYS_setgroups,
        ];

        /// # Safety
        /// As for the system call.
        unsafe fn perform_now(number: c_long, arguments: Arguments) -> Option<c_long> {
            let mut arguments = arguments.into_iter();
            let mut next = || arguments.next().unwrap_or(0);
            let _ = &mut next;
            // SAFETY: promised by the caller. Arguments are evaluated from left to right.
            unsafe {
                match number {
                    $(libc::$everywhere => Some(libc::$function($(next() as $type),*) as c_long),)*
                    $(
                        #[cfg(target_arch = "x86_64")]
                        libc::$old => Some(libc::$old_function($(next() as $old_type),*) as c_long),
                    )*
                    _ => special(number, [next(), next(), next(), next(), next(), next()]),
                }
            }
        }
    };
}

type Path = *const c_char;
type Pieces = *const libc::iovec;
type Set = *mut libc::fd_set;

calls! {
    every SYS_close: close(c_int);
    every SYS_close_range: close_range(c_uint, c_uint, c_int);
    every SYS_copy_file_range: copy_file_range(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint);
    every SYS_dup: dup(c_int);
    every SYS_dup3: dup3(c_int, c_int, c_int);
    every SYS_execve: execve(Path, Words, Words);
    every SYS_fcntl: fcntl(c_int, c_int, usize);
    every SYS_openat: openat(c_int, Path, c_int, mode_t);
    every SYS_pread64: pread(c_int, *mut c_void, size_t, off_t);
    every SYS_pwrite64: pwrite(c_int, *const c_void, size_t, off_t);
    every SYS_read: read(c_int, *mut c_void, size_t);
    every SYS_statx: statx(c_int, Path, c_int, c_uint, *mut libc::statx);
    every SYS_write: write(c_int, *const c_void, size_t);
    every SYS_chdir: chdir(Path);
    every SYS_fallocate: fallocate(c_int, c_int, off_t, off_t);
    every SYS_fchdir: fchdir(c_int);
    every SYS_fchmod: fchmod(c_int, mode_t);
    every SYS_fchown: fchown(c_int, c_uint, c_uint);
    every SYS_fchownat: fchownat(c_int, Path, c_uint, c_uint, c_int);
    every SYS_fdatasync: fdatasync(c_int);
    every SYS_fgetxattr: fgetxattr(c_int, Path, *mut c_void, size_t);
    every SYS_flistxattr: flistxattr(c_int, *mut c_char, size_t);
    every SYS_flock: flock(c_int, c_int);
    every SYS_fremovexattr: fremovexattr(c_int, Path);
    every SYS_fsetxattr: fsetxattr(c_int, Path, *const c_void, size_t, c_int);
    every SYS_fsync: fsync(c_int);
    every SYS_epoll_ctl: epoll_ctl(c_int, c_int, c_int, *mut libc::epoll_event);
    every SYS_ftruncate: ftruncate(c_int, off_t);
    every SYS_getxattr: getxattr(Path, Path, *mut c_void, size_t);
    every SYS_ioctl: ioctl(c_int, c_ulong, usize);
    every SYS_lgetxattr: lgetxattr(Path, Path, *mut c_void, size_t);
    every SYS_linkat: linkat(c_int, Path, c_int, Path, c_int);
    every SYS_listxattr: listxattr(Path, *mut c_char, size_t);
    every SYS_llistxattr: llistxattr(Path, *mut c_char, size_t);
    every SYS_lremovexattr: lremovexattr(Path, Path);
    every SYS_lseek: lseek(c_int, off_t, c_int);
    every SYS_lsetxattr: lsetxattr(Path, Path, *const c_void, size_t, c_int);
    every SYS_mkdirat: mkdirat(c_int, Path, mode_t);
    every SYS_mknodat: mknodat(c_int, Path, mode_t, dev_t);
    every SYS_mmap: mmap(*mut c_void, size_t, c_int, c_int, c_int, off_t);
    every SYS_mremap: mremap(*mut c_void, size_t, size_t, c_int, *mut c_void);
    every SYS_msync: msync(*mut c_void, size_t, c_int);
    every SYS_munmap: munmap(*mut c_void, size_t);
    every SYS_ppoll: ppoll(*mut libc::pollfd, c_ulong, *const timespec, *const libc::sigset_t);
    every SYS_preadv: preadv(c_int, Pieces, c_int, off_t);
    every SYS_pwritev: pwritev(c_int, Pieces, c_int, off_t);
    every SYS_readahead: readahead(c_int, libc::off64_t, size_t);
    every SYS_readlinkat: readlinkat(c_int, Path, *mut c_char, size_t);
    every SYS_readv: readv(c_int, Pieces, c_int);
    every SYS_removexattr: removexattr(Path, Path);
    every SYS_renameat2: renameat2(c_int, Path, c_int, Path, c_uint);
    every SYS_sendfile: sendfile(c_int, c_int, *mut off_t, size_t);
    every SYS_setxattr: setxattr(Path, Path, *const c_void, size_t, c_int);
    every SYS_splice: splice(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint);
    every SYS_statfs: statfs(Path, *mut libc::statfs);
    every SYS_fstatfs: fstatfs(c_int, *mut libc::statfs);
    every SYS_symlinkat: symlinkat(Path, c_int, Path);
    every SYS_sync_file_range: sync_file_range(c_int, off_t, off_t, c_uint);
    every SYS_syncfs: syncfs(c_int);
    every SYS_truncate: truncate(Path, off_t);
    every SYS_umask: umask(mode_t);
    every SYS_unlinkat: unlinkat(c_int, Path, c_int);
    every SYS_writev: writev(c_int, Pieces, c_int);
    every SYS_newfstatat: fstatat(c_int, Path, *mut libc::stat, c_int);
    every SYS_fstat: fstat(c_int, *mut libc::stat);
    every SYS_faccessat2: faccessat(c_int, Path, c_int, c_int);
    every SYS_accept: accept(c_int, *mut sockaddr, *mut socklen_t);
    every SYS_accept4: accept4(c_int, *mut sockaddr, *mut socklen_t, c_int);
    every SYS_bind: bind(c_int, *const sockaddr, socklen_t);
    every SYS_connect: connect(c_int, *const sockaddr, socklen_t);
    every SYS_getpeername: getpeername(c_int, *mut sockaddr, *mut socklen_t);
    every SYS_getsockname: getsockname(c_int, *mut sockaddr, *mut socklen_t);
    every SYS_recvfrom: recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t);
    every SYS_recvmsg: recvmsg(c_int, *mut msghdr, c_int);
    every SYS_sendmsg: sendmsg(c_int, *const msghdr, c_int);
    every SYS_sendto: sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t);
    old SYS_access: access(Path, c_int);
    old SYS_chmod: chmod(Path, mode_t);
    old SYS_chown: chown(Path, c_uint, c_uint);
    old SYS_creat: creat(Path, mode_t);
    old SYS_lchown: lchown(Path, c_uint, c_uint);
    old SYS_dup2: dup2(c_int, c_int);
    old SYS_link: link(Path, Path);
    old SYS_lstat: lstat(Path, *mut libc::stat);
    old SYS_mkdir: mkdir(Path, mode_t);
    old SYS_mknod: mknod(Path, mode_t, dev_t);
    old SYS_open: open(Path, c_int, mode_t);
    old SYS_poll: poll(*mut libc::pollfd, c_ulong, c_int);
    old SYS_readlink: readlink(Path, *mut c_char, size_t);
    old SYS_rename: rename(Path, Path);
    old SYS_renameat: renameat(c_int, Path, c_int, Path);
    old SYS_rmdir: rmdir(Path);
    old SYS_select: select(c_int, Set, Set, Set, *mut libc::timeval);
    old SYS_stat: stat(Path, *mut libc::stat);
    old SYS_symlink: symlink(Path, Path);
    old SYS_unlink: unlink(Path);
    old SYS_utime: utime(Path, *const libc::utimbuf);
    old SYS_utimes: utimes(Path, *const libc::timeval);
}

/// Those that are ours also in the middle of a call. Were the table of descriptors not told of a
/// close, the next file of that number would be the volume's.
const ALWAYS: &[c_long] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fcntl,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_statx,
    libc::SYS_write,
];

/// Does a call as the function of its name, with errno. None: it is the kernel's. No thread is
/// cancelled in a system call.
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn perform(number: c_long, arguments: Arguments) -> Option<c_long> {
    let is_adits_own = || inside::is_inside() || volume::is_opening();
    if !ALWAYS.contains(&number) && is_adits_own() || moves_data_of_host(number, arguments) {
        return None;
    }
    // SAFETY: promised by the caller.
    inside::uncancelled(|| unsafe { perform_now(number, arguments) })
}

fn moves_data_of_host(number: c_long, [a, _, c, ..]: Arguments) -> bool {
    let is_of_host = |fd: usize| descriptors::get(fd as c_int).is_none();
    match number {
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64 => is_of_host(a),
        libc::SYS_copy_file_range => is_of_host(a) && is_of_host(c),
        _ => false,
    }
}

/// Calls that are none of a function's, or have other arguments.
///
/// # Safety
/// As for the system call.
unsafe fn special(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    let (fd, path) = (a as c_int, b as Path);
    // SAFETY: promised by the caller.
    let result: c_long = unsafe {
        match number {
            libc::SYS_openat2 => {
                let Location::Volume(_) = path::find(fd, path) else {
                    return None;
                };
                match (c as *const libc::open_how).as_ref() {
                    Some(how) if d >= size_of::<libc::open_how>() && how.resolve == 0 => {
                        libc::openat(fd, path, how.flags as c_int, how.mode as mode_t).into()
                    }
                    // Programs that want such a path of older kernels, too, go on without.
                    Some(_) => failed(Errno::NOSYS),
                    None => failed(Errno::FAULT),
                }
            }
            libc::SYS_execveat => execveat(fd, path, c as Words, d as Words, e as c_int).into(),
            libc::SYS_faccessat => libc::faccessat(fd, path, c as c_int, 0).into(),
            libc::SYS_fchmodat => libc::fchmodat(fd, path, c as mode_t, 0).into(),
            libc::SYS_fadvise64 => {
                match libc::posix_fadvise(fd, b as off_t, c as off_t, d as c_int) {
                    0 => 0,
                    errno => failed(Errno::from_raw(errno)),
                }
            }
            // Without a buffer the C library's function would make one.
            libc::SYS_getcwd if a == 0 => failed(Errno::FAULT),
            libc::SYS_getcwd if libc::getcwd(a as *mut c_char, b).is_null() => -1,
            libc::SYS_getcwd => text(a as Path).len() as c_long + 1,
            libc::SYS_getdents64 => getdents64(fd, b as *mut c_void, c) as c_long,
            // The fifth argument is the upper half of the offset, on machines of 32 bits.
            libc::SYS_preadv2 => {
                libc::preadv2(fd, b as Pieces, c as c_int, d as off_t, f as c_int) as c_long
            }
            libc::SYS_pwritev2 => {
                libc::pwritev2(fd, b as Pieces, c as c_int, d as off_t, f as c_int) as c_long
            }
            libc::SYS_pselect6 => {
                // NULL, or the address of a mask, and its length.
                let mask = (f as *const *const libc::sigset_t).as_ref();
                let mask = mask.map_or(std::ptr::null(), |mask| *mask);
                let (read, write, except) = (b as Set, c as Set, d as Set);
                libc::pselect(fd, read, write, except, e as *const timespec, mask).into()
            }
            libc::SYS_utimensat if b == 0 => libc::futimens(fd, c as *const timespec).into(),
            libc::SYS_utimensat => {
                libc::utimensat(fd, path, c as *const timespec, d as c_int).into()
            }
            libc::SYS_io_uring_setup => {
                say_once!("io_uring goes past the volume, so this program gets none (ENOSYS)");
                failed(Errno::NOSYS)
            }
            // Ids of this thread alone: the kernel changes them, and the next call looks.
            _ => {
                identity::changed();
                return None;
            }
        }
    };
    Some(result)
}
