//! System calls by number (`syscall`) that name paths, or descriptors: those of programs that have a
//! number for what the C library has no function for, or had none.
//!
//! Each is done as the C library's function of that name, which is ours. A call that the kernel has
//! with fewer flags than the function has none here.

use crate::calls::getdents64;
use crate::files::path::{self, Place};
use crate::runtime::answer::set_errno;
use crate::runtime::message::say_once;
use crate::runtime::real::text;
use crate::volume::identity;
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

        /// Does a call as the function of its name, with errno. None: the kernel does it.
        ///
        /// # Safety
        /// As for the system call.
        pub(crate) unsafe fn perform(number: c_long, arguments: Arguments) -> Option<c_long> {
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

/// Calls that are none of a function's, or have other arguments.
unsafe fn special(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    let fail = |errno| {
        set_errno(errno);
        Some(-1)
    };
    match number {
        libc::SYS_openat2 => {
            // SAFETY: promised by the caller.
            let is_ours = unsafe { path::find(a as c_int, b as Path) };
            let Place::Volume(_) = is_ours else {
                return None;
            };
            // SAFETY: as above.
            let how = unsafe { (c as *const libc::open_how).as_ref() };
            match how {
                Some(how) if d >= size_of::<libc::open_how>() && how.resolve == 0 => {
                    let (flags, mode) = (how.flags as c_int, how.mode as mode_t);
                    // SAFETY: as above.
                    Some(unsafe { libc::openat(a as c_int, b as Path, flags, mode) }.into())
                }
                // Programs that want such a path of older kernels, too, go on without.
                Some(_) => fail(Errno::NOSYS),
                None => fail(Errno::FAULT),
            }
        }
        libc::SYS_faccessat => {
            // SAFETY: as above.
            Some(unsafe { libc::faccessat(a as c_int, b as Path, c as c_int, 0) }.into())
        }
        libc::SYS_fchmodat => {
            // SAFETY: as above.
            Some(unsafe { libc::fchmodat(a as c_int, b as Path, c as mode_t, 0) }.into())
        }
        libc::SYS_fadvise64 => {
            let (at, len) = (b as off_t, c as off_t);
            // SAFETY: as above.
            match unsafe { libc::posix_fadvise(a as c_int, at, len, d as c_int) } {
                0 => Some(0),
                errno => fail(Errno::from_raw(errno)),
            }
        }
        libc::SYS_getcwd => {
            // SAFETY: as above. Without a buffer the C library's function would make one.
            unsafe {
                match a {
                    0 => fail(Errno::FAULT),
                    _ if libc::getcwd(a as *mut c_char, b).is_null() => Some(-1),
                    _ => Some(text(a as Path).len() as c_long + 1),
                }
            }
        }
        libc::SYS_getdents64 => {
            // SAFETY: as above.
            let read = unsafe { getdents64(a as c_int, b as *mut c_void, c) };
            Some(read as c_long)
        }
        // The fifth argument is the upper half of the offset, on machines of 32 bits.
        libc::SYS_preadv2 => {
            let (count, at) = (c as c_int, d as off_t);
            // SAFETY: as above.
            let read = unsafe { libc::preadv2(a as c_int, b as Pieces, count, at, f as c_int) };
            Some(read as c_long)
        }
        libc::SYS_pwritev2 => {
            let (count, at) = (c as c_int, d as off_t);
            // SAFETY: as above.
            let put = unsafe { libc::pwritev2(a as c_int, b as Pieces, count, at, f as c_int) };
            Some(put as c_long)
        }
        libc::SYS_pselect6 => {
            // SAFETY: as above: NULL, or the address of a mask, and its length.
            let mask = unsafe { (f as *const *const libc::sigset_t).as_ref() };
            let mask = mask.map_or(std::ptr::null(), |mask| *mask);
            let (time, sets) = (e as *const timespec, [b as Set, c as Set, d as Set]);
            let [read, write, except] = sets;
            // SAFETY: as above.
            let ready = unsafe { libc::pselect(a as c_int, read, write, except, time, mask) };
            Some(ready.into())
        }
        libc::SYS_utimensat => {
            let times = c as *const timespec;
            // SAFETY: as above.
            let set = unsafe {
                match b {
                    0 => libc::futimens(a as c_int, times),
                    _ => libc::utimensat(a as c_int, b as Path, times, d as c_int),
                }
            };
            Some(set.into())
        }
        libc::SYS_io_uring_setup => {
            say_once!("io_uring goes past the volume, so this program gets none (ENOSYS)");
            fail(Errno::NOSYS)
        }
        // Ids of this thread alone: the kernel changes them, and the next call looks.
        _ => {
            identity::changed();
            None
        }
    }
}
