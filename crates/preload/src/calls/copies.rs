//! Copies between descriptors: copy_file_range, sendfile, splice.

use crate::answer::{Answer, ToC, errno, set_errno};
use crate::descriptors::{self, Held};
use crate::inside;
use crate::real::real;
use adit::{Errno, FileKind};
use adit_interposed::interposed;
use libc::{c_int, c_uint, off_t, size_t, ssize_t};

/// Bytes that one call moves at most: the caller goes on with the next.
const COPY_MAX: usize = 1 << 20;

/// One end of a copy: a file of the volume or the host, at an offset or at its position.
struct End {
    fd: c_int,
    open: Option<Held>,
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

    fn read(&self, buffer: &mut [u8]) -> Answer<usize> {
        let (start, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        let count = match self.at()? {
            // SAFETY: memory of that length.
            Some(at) => unsafe { libc::pread(self.fd, start, len, at) },
            // SAFETY: as above.
            None => unsafe { libc::read(self.fd, start, len) },
        };
        usize::try_from(count).map_err(|_| Errno::last())
    }

    fn write(&self, data: &[u8]) -> Answer<usize> {
        let (start, len) = (data.as_ptr().cast(), data.len());
        let count = match self.at()? {
            // SAFETY: memory of that length.
            Some(at) => unsafe { libc::pwrite(self.fd, start, len, at) },
            // SAFETY: as above.
            None => unsafe { libc::write(self.fd, start, len) },
        };
        usize::try_from(count).map_err(|_| Errno::last())
    }
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
fn copy_inside(from: &End, to: &End, len: usize) -> Option<Answer> {
    let (source, target) = (from.open.as_ref()?, to.open.as_ref()?);
    if source.kind != FileKind::File || target.kind != FileKind::File {
        return Some(Err(Errno::INVAL));
    }
    if target.flags() & libc::O_APPEND != 0 {
        return Some(Err(Errno::BADF));
    }
    let copy = || {
        let source_at = match from.at()? {
            Some(at) => at as u64,
            None => *source.position(),
        };
        let target_at = match to.at()? {
            Some(at) => at as u64,
            None => *target.position(),
        };
        let (file, len) = (&source.file, len as u64);
        let done = file.copy_range(source_at, &target.file, target_at, len);
        let done = done.map_err(errno)?;
        for (end, open) in [(from, source), (to, target)] {
            match end.offset.is_null() {
                true => *open.position() += done,
                false => end.moved(done as i64),
            }
        }
        Ok(done as i64)
    };
    Some(inside::call(copy))
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
        (None, None) => real!(copy_file_range(
            from => c_int, from_offset => *mut off_t, to => c_int, to_offset => *mut off_t,
            len => size_t, flags => c_uint
        ) -> ssize_t),
        _ if flags != 0 => Answer::<i64>::Err(Errno::INVAL).to_c() as ssize_t,
        _ => {
            let inside = copy_inside(&ends.0, &ends.1, len);
            inside
                .unwrap_or_else(|| inside::uncancelled(|| copy(&ends.0, &ends.1, len)))
                .to_c() as ssize_t
        }
    }
}

macro_rules! sendfile {
    ($($name:ident)*) => {$(
        #[interposed]
        unsafe extern "C" fn $name(
            to: c_int, from: c_int, offset: *mut off_t, len: size_t,
        ) -> ssize_t {
            let ends = (End::new(from, offset), End::new(to, std::ptr::null_mut()));
            match (&ends.0.open, &ends.1.open) {
                (None, None) => real!($name(
                    to => c_int, from => c_int, offset => *mut off_t, len => size_t
                ) -> ssize_t),
                _ => inside::uncancelled(|| copy(&ends.0, &ends.1, len)).to_c() as ssize_t,
            }
        }
    )*};
}
sendfile!(sendfile sendfile64);

#[interposed]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if descriptors::get(from).is_some() || descriptors::get(to).is_some() {
        set_errno(Errno::INVAL);
        return -1;
    }
    real!(splice(
        from => c_int, from_offset => *mut off_t, to => c_int, to_offset => *mut off_t,
        len => size_t, flags => c_uint
    ) -> ssize_t)
}
