//! Copies between descriptors: copy_file_range, sendfile, splice.

use crate::files::descriptors::{self, Open, OpenRef};
use crate::runtime::answer::{Answer, ToC, checked, errno};
use crate::runtime::inside;
use crate::runtime::real::real;
use adit::{Errno, FileKind};
use adit_base::from_rustix;
use adit_interposed::interposed;
use libc::{c_int, c_uint, c_void, mode_t, off_t, size_t, ssize_t};
use std::os::fd::AsRawFd;

/// Bytes that one call moves at most: the caller goes on with the next.
const COPY_MAX: usize = 1 << 20;

/// One end of a copy: a file of the volume or the host, at an offset or at its position.
struct End {
    fd: c_int,
    open: Option<OpenRef>,
    offset: *mut off_t,
}

impl End {
    fn new(fd: c_int, offset: *mut off_t) -> End {
        let open = descriptors::get(fd);
        End { fd, open, offset }
    }

    fn at(&self) -> Answer<Option<off_t>> {
        // SAFETY: NULL, or the program's variable.
        match unsafe { self.offset.as_ref() } {
            Some(offset) if *offset < 0 => Err(Errno::INVAL),
            offset => Ok(offset.copied()),
        }
    }

    fn moved(&self, count: i64) {
        // SAFETY: as above.
        if let Some(offset) = unsafe { self.offset.as_mut() } {
            *offset += count;
        }
    }

    /// Where the transfer begins in a file of the volume.
    fn begin(&self, open: &Open) -> Answer<u64> {
        Ok(match self.at()? {
            Some(at) => at as u64,
            None => *open.position(),
        })
    }

    /// So much of a file of the volume was moved, past its position.
    fn went_on(&self, open: &Open, count: i64) {
        if self.offset.is_null() {
            *open.position() += count as u64;
        } else {
            self.moved(count);
        }
    }

    /// Those of the open file. A descriptor of `O_PATH` is none here.
    fn flags(&self) -> Answer<c_int> {
        let flags = match &self.open {
            Some(open) => open.flags(),
            // SAFETY: no preconditions.
            None => unsafe { libc::fcntl(self.fd, libc::F_GETFL) },
        };
        if flags < 0 || flags & libc::O_PATH != 0 {
            Err(Errno::BADF)
        } else {
            Ok(flags)
        }
    }

    /// The type of the file, as `st_mode` has it.
    fn kind(&self) -> Answer<mode_t> {
        match self.open.as_ref().map(|open| open.kind) {
            Some(FileKind::Directory) => Ok(libc::S_IFDIR),
            Some(_) => Ok(libc::S_IFREG),
            None => {
                // SAFETY: all zeroes are a value, which the call fills.
                let (done, found) = unsafe {
                    let mut found: libc::stat = std::mem::zeroed();
                    (libc::fstat(self.fd, &mut found), found)
                };
                checked(done).map(|_| found.st_mode & libc::S_IFMT)
            }
        }
    }

    /// Does the kernel's sum of the offset and a length begin anew at 0?
    fn wraps(&self, len: usize) -> bool {
        // SAFETY: NULL, or the program's variable.
        let offset = unsafe { self.offset.as_ref() };
        offset.is_some_and(|offset| (*offset as u64).checked_add(len as u64).is_none())
    }

    fn read(&self, buffer: &mut [u8]) -> Answer<usize> {
        let (start, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        let count = match self.at()? {
            // SAFETY: memory of that length.
            Some(at) => unsafe { libc::pread(self.fd, start, len, at) },
            // SAFETY: as above.
            None => unsafe { libc::read(self.fd, start, len) },
        };
        checked(count).map(|count| count as usize)
    }

    fn write(&self, data: &[u8]) -> Answer<usize> {
        let (start, len) = (data.as_ptr().cast(), data.len());
        let count = match self.at()? {
            // SAFETY: memory of that length.
            Some(at) => unsafe { libc::pwrite(self.fd, start, len, at) },
            // SAFETY: as above.
            None => unsafe { libc::write(self.fd, start, len) },
        };
        checked(count).map(|count| count as usize)
    }
}

fn reads(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_WRONLY
}

fn writes(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Reads a piece and writes it. What couldn't be written is not passed in the source.
fn copy(from: &End, to: &End, len: usize) -> Answer {
    let mut buffer = vec![0; len.min(COPY_MAX)];
    let count = from.read(&mut buffer)?;
    if count == 0 {
        return Ok(0);
    }
    let written = to.write(&buffer[..count]);
    let done = *written.as_ref().unwrap_or(&0);
    if from.offset.is_null() && done < count {
        let back = (count - done) as off_t;
        // SAFETY: goes back over what was read but not written.
        unsafe { libc::lseek(from.fd, -back, libc::SEEK_CUR) };
    }
    let done = written? as i64;
    from.moved(done);
    to.moved(done);
    Ok(done)
}

/// Both in the volume: the file system copies, and keeps holes.
fn copy_inside(from: &End, to: &End, source: &Open, target: &Open, len: usize) -> Answer {
    let (source_at, target_at) = (from.begin(source)?, to.begin(target)?);
    let (file, len) = (&source.file, len as u64);
    let done = file.copy_range(source_at, &target.file, target_at, len);
    let done = done.map_err(errno)? as i64;
    from.went_on(source, done);
    to.went_on(target, done);
    Ok(done)
}

/// The kernel's checks in its order, and the copy. A file of the host's is on another file system.
fn copy_range(from: &End, to: &End, len: usize, flags: c_uint) -> Answer {
    let (source_flags, target_flags) = (from.flags()?, to.flags()?);
    if flags != 0 {
        return Err(Errno::INVAL);
    }
    match (from.kind()?, to.kind()?) {
        (libc::S_IFREG, libc::S_IFREG) => {}
        (libc::S_IFDIR, _) | (_, libc::S_IFDIR) => return Err(Errno::ISDIR),
        _ => return Err(Errno::INVAL),
    }
    let appends = target_flags & libc::O_APPEND != 0;
    if !reads(source_flags) || !writes(target_flags) || appends {
        return Err(Errno::BADF);
    }
    let (Some(source), Some(target)) = (&from.open, &to.open) else {
        return Err(Errno::XDEV);
    };
    if from.wraps(len) || to.wraps(len) {
        return Err(Errno::OVERFLOW);
    }
    inside::call(|| copy_inside(from, to, source, target, len))
}

#[interposed]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let ends = (End::new(from, from_offset), End::new(to, to_offset));
    match (&ends.0.open, &ends.1.open) {
        (None, None) => real(from, from_offset, to, to_offset, len, flags),
        _ => copy_range(&ends.0, &ends.1, len, flags).to_c(),
    }
}

/// The kernel's checks in its order, and the copy.
fn send(from: &End, to: &End, len: usize) -> Answer {
    if !reads(from.flags()?) {
        return Err(Errno::BADF);
    }
    let source = from.kind()?;
    if !from.offset.is_null() {
        if !matches!(source, libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK) {
            return Err(Errno::SPIPE);
        }
        from.at()?;
    }
    let target_flags = to.flags()?;
    if !writes(target_flags) {
        return Err(Errno::BADF);
    }
    let into_pipe = to.kind()? == libc::S_IFIFO;
    if !into_pipe && target_flags & libc::O_APPEND != 0 {
        return Err(Errno::INVAL);
    }
    if !matches!(source, libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK) {
        return Err(Errno::INVAL);
    }
    match source {
        _ if len == 0 => Ok(0),
        libc::S_IFDIR => Err(Errno::INVAL),
        _ => copy(from, to, len),
    }
}

#[interposed(sendfile64)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
    let ends = (End::new(from, offset), End::new(to, std::ptr::null_mut()));
    match (&ends.0.open, &ends.1.open) {
        (None, None) => real(to, from, offset, len),
        _ => inside::uncancelled(|| send(&ends.0, &ends.1, len)).to_c(),
    }
}

// ------------------------------------------------------------------------ splice

#[interposed]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let ends = (End::new(from, from_offset), End::new(to, to_offset));
    match (&ends.0.open, &ends.1.open) {
        (None, None) => real(from, from_offset, to, to_offset, len, flags),
        _ => inside::uncancelled(|| move_piped(&ends.0, &ends.1, len, flags)).to_c(),
    }
}

/// The kernel's checks in its order, and the transfer between a pipe and a file of the volume.
fn move_piped(from: &End, to: &End, len: usize, flags: c_uint) -> Answer {
    const KNOWN: c_uint =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    if flags & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let (source_flags, target_flags) = (from.flags()?, to.flags()?);
    let is_pipe = |end: &End| Ok(end.kind()? == libc::S_IFIFO);
    let (from_pipe, into_pipe) = (is_pipe(from)?, is_pipe(to)?);
    if from_pipe && !from.offset.is_null() || into_pipe && !to.offset.is_null() {
        return Err(Errno::SPIPE);
    }
    if !reads(source_flags) || !writes(target_flags) {
        return Err(Errno::BADF);
    }
    match (&from.open, &to.open) {
        (Some(source), None) if into_pipe => into(from, source, to.fd, len, flags),
        (None, Some(target)) if from_pipe && target_flags & libc::O_APPEND == 0 => {
            out_of(from.fd, to, target, len, flags)
        }
        _ => Err(Errno::INVAL),
    }
}

/// What one call of `splice` moves at most: a pipe's room.
const PIPE_BYTES: usize = 64 << 10;

/// From a file into a pipe: by a file of the kernel's, of which the kernel takes as much as the pipe
/// has room for, and waits as the flags say.
fn into(from: &End, source: &Open, pipe: c_int, len: usize, flags: c_uint) -> Answer {
    if source.kind != FileKind::File {
        return Err(Errno::INVAL);
    }
    let at = from.begin(source)?;
    let mut buffer = vec![0; len.min(PIPE_BYTES)];
    let count = inside::call(|| super::data::read_from(source, &mut buffer, at))? as usize;
    if count == 0 {
        return Ok(0);
    }
    let memory = rustix::fs::memfd_create(c"adit-splice", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(from_rustix)?;
    rustix::io::write(&memory, &buffer[..count]).map_err(from_rustix)?;
    let mut start: off_t = 0;
    let (fd, start, nowhere) = (memory.as_raw_fd(), &raw mut start, std::ptr::null_mut());
    let moved = checked(real!(splice(
        fd => c_int, start => *mut off_t, pipe => c_int, nowhere => *mut off_t, count => size_t,
        flags => c_uint
    ) -> ssize_t))?;
    from.went_on(source, moved as i64);
    Ok(moved as i64)
}

/// From a pipe into a file. The pipe keeps its bytes until the file has them.
fn out_of(pipe: c_int, to: &End, target: &Open, len: usize, flags: c_uint) -> Answer {
    let at = to.begin(target)? as off_t;
    let (out, into) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(from_rustix)?;
    // SAFETY: numbers of pipes.
    let seen = unsafe { libc::tee(pipe, into.as_raw_fd(), len.min(PIPE_BYTES), flags) };
    let mut buffer = vec![0; checked(seen)? as usize];
    if seen == 0 {
        return Ok(0);
    }
    let count = rustix::io::read(&out, &mut buffer).map_err(from_rustix)?;
    let data = buffer.as_ptr().cast();
    // SAFETY: memory of that length.
    let written = inside::call(|| unsafe { super::data::write_at(target, data, count, at) })?;
    let (start, len) = (buffer.as_mut_ptr().cast(), written as usize);
    real!(read(pipe => c_int, start => *mut c_void, len => size_t) -> ssize_t);
    to.went_on(target, written);
    Ok(written)
}
