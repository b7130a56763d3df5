//! Checked arguments: pointers and numbers from C become values that Rust may use.
//!
//! Invariant: every function here turns a NULL, an impossible length, or an unknown flag into
//! `EINVAL`. The validity of other pointers is the caller's duty, by `adit.h`.

use adit::{Errno, Error, Result};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Most pieces of a vector, as `IOV_MAX` of Linux.
const VECTOR_PIECES_MAX: c_int = 1024;
/// Most bytes that a structure will ever have: more is memory that nobody set.
const STRUCT_BYTES_MAX: usize = 4096;

#[cold]
pub(crate) fn invalid(what: &'static str) -> Error {
    Error::with(Errno::INVAL, what)
}

/// A time limit in nanoseconds; below zero there is none.
pub(crate) fn timeout(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

/// The object behind a handle.
#[inline]
pub(crate) unsafe fn handle<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: a handle that isn't NULL is alive: the caller's duty.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid("use a handle that is NULL"))
}

/// The handle behind a pointer, of a kind that belongs to one thread at a time.
#[inline]
pub(crate) unsafe fn handle_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: as above; and no other thread uses it now.
    unsafe { pointer.as_mut() }.ok_or_else(|| invalid("use a handle that is NULL"))
}

/// Takes the object behind a handle away from C.
pub(crate) unsafe fn take<T>(pointer: *mut T) -> Result<Box<T>> {
    if pointer.is_null() {
        return Err(invalid("close a handle that is NULL"));
    }
    // SAFETY: handles come from `give`, and are closed once.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// Frees what a handle stood for. In a forked child that is all that happens: EBADF.
pub(crate) unsafe fn close<T>(pointer: *mut T, is_inherited: impl Fn(&T) -> bool) -> Result<()> {
    // SAFETY: as for this function.
    let object = unsafe { take(pointer)? };
    if is_inherited(&object) {
        Err(Error::new(Errno::BADF))
    } else {
        Ok(())
    }
}

/// A place for a result: checked before the operation, written after it.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(self, value: T) {
        // SAFETY: `out` checked that it isn't NULL; the caller says that it may be written.
        unsafe { self.0.write(value) }
    }
}

impl<T> Out<T> {
    /// The first place of an array.
    pub(crate) fn pointer(self) -> *mut T {
        self.0
    }
}

impl<T> Out<*mut T> {
    /// Hands an object to C, as a handle.
    pub(crate) fn give(self, object: T) {
        self.put(Box::into_raw(Box::new(object)));
    }
}

pub(crate) fn out<T>(pointer: *mut T) -> Result<Out<T>> {
    if pointer.is_null() {
        return Err(invalid("return a result to NULL"));
    }
    Ok(Out(pointer))
}

/// A place for a result that carries its own size, in its first field.
pub(crate) struct GrowingOut<T> {
    place: *mut T,
    /// Of the version that the caller was compiled with.
    struct_bytes: usize,
}

impl<T: Copy> GrowingOut<T> {
    /// Writes as much as the caller's version has, except for its size; zero where ours ends.
    pub(crate) fn put(self, value: &T) {
        const HEAD_BYTES: usize = size_of::<u32>();
        let known = self.struct_bytes.min(size_of::<T>());
        let (place, value) = (self.place.cast::<u8>(), (&raw const *value).cast::<u8>());
        // SAFETY: `growing_out` checked the pointer and the size; the caller says that so many
        // bytes may be written. T is one of the structures of types.rs: plain numbers.
        unsafe {
            let body = place.add(HEAD_BYTES);
            std::ptr::copy_nonoverlapping(value.add(HEAD_BYTES), body, known - HEAD_BYTES);
            place.add(known).write_bytes(0, self.struct_bytes - known);
        }
    }
}

/// An out-parameter that is a structure which begins with its size.
pub(crate) unsafe fn growing_out<T: Copy>(pointer: *mut T) -> Result<GrowingOut<T>> {
    let Out(place) = out(pointer)?;
    // SAFETY: as for this function.
    let struct_bytes = unsafe { struct_bytes(place)? };
    Ok(GrowingOut {
        place,
        struct_bytes,
    })
}

/// The size that a structure begins with.
unsafe fn struct_bytes<T>(pointer: *const T) -> Result<usize> {
    // SAFETY: each such structure begins with its size.
    let struct_bytes = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    ((size_of::<u32>()..=STRUCT_BYTES_MAX).contains(&struct_bytes))
        .then_some(struct_bytes)
        .ok_or_else(|| invalid("use a structure whose struct_bytes is not set"))
}

/// A string.
pub(crate) unsafe fn text<'a>(pointer: *const c_char) -> Result<&'a CStr> {
    if pointer.is_null() {
        return Err(invalid("use a string that is NULL"));
    }
    // SAFETY: strings are terminated: the caller's duty.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A path.
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Result<&'a Path> {
    // SAFETY: as for this function.
    let bytes = unsafe { text(pointer)? }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

#[inline]
fn check_memory(is_null: bool, len: usize) -> Result<()> {
    if is_null && len > 0 {
        return Err(invalid("use memory at NULL"));
    }
    if len > isize::MAX as usize {
        return Err(invalid("use more memory than there can be"));
    }
    Ok(())
}

/// Memory to read from.
#[inline]
pub(crate) unsafe fn bytes<'a, T>(data: *const T, len: usize) -> Result<&'a [u8]> {
    // SAFETY: as for this function.
    unsafe { items(data.cast(), len) }
}

/// An array to read from.
#[inline]
pub(crate) unsafe fn items<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    check_memory(first.is_null(), count.saturating_mul(size_of::<T>()))?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: checked for NULL and length; the caller says that it may be read during the call.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Memory to write to.
#[inline]
pub(crate) unsafe fn bytes_mut<'a, T>(data: *mut T, len: usize) -> Result<&'a mut [u8]> {
    check_memory(data.is_null(), len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: checked for NULL and length; the caller says that it is ours during the call.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

/// The pieces of a vector, each checked.
unsafe fn pieces<'a>(vector: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec]> {
    if !(0..=VECTOR_PIECES_MAX).contains(&count) || (vector.is_null() && count > 0) {
        return Err(invalid("use a vector of this length"));
    }
    // SAFETY: as for this function.
    let pieces = unsafe { items(vector, count as usize)? };
    let mut sum = 0_usize;
    for piece in pieces {
        check_memory(piece.iov_base.is_null(), piece.iov_len)?;
        sum = sum.saturating_add(piece.iov_len);
    }
    check_memory(false, sum)?;
    Ok(pieces)
}

/// Most pieces of a vector that are passed on without an allocation.
const PIECES_ON_STACK: usize = 16;

/// Calls `body` with the pieces of a vector to write.
pub(crate) unsafe fn with_slices<T>(
    vector: *const libc::iovec,
    count: c_int,
    body: impl FnOnce(&[IoSlice<'_>]) -> Result<T>,
) -> Result<T> {
    // SAFETY: as for this function.
    let pieces = unsafe { pieces(vector, count)? };
    let slice = |piece: &libc::iovec| {
        // SAFETY: checked by `pieces`.
        IoSlice::new(unsafe { bytes(piece.iov_base, piece.iov_len) }.unwrap_or(&[]))
    };
    if pieces.len() > PIECES_ON_STACK {
        return body(&pieces.iter().map(slice).collect::<Vec<_>>());
    }
    let mut slices = [IoSlice::new(&[]); PIECES_ON_STACK];
    for (place, piece) in slices.iter_mut().zip(pieces) {
        *place = slice(piece);
    }
    body(&slices[..pieces.len()])
}

/// Calls `body` with the pieces of a vector to read into.
pub(crate) unsafe fn with_slices_mut<T>(
    vector: *const libc::iovec,
    count: c_int,
    body: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<T>,
) -> Result<T> {
    // SAFETY: as for this function.
    let pieces = unsafe { pieces(vector, count)? };
    let slice = |piece: &libc::iovec| {
        // SAFETY: checked by `pieces`.
        let memory = unsafe { bytes_mut(piece.iov_base, piece.iov_len) };
        IoSliceMut::new(memory.unwrap_or(&mut []))
    };
    if pieces.len() > PIECES_ON_STACK {
        return body(&mut pieces.iter().map(slice).collect::<Vec<_>>());
    }
    let mut slices: [_; PIECES_ON_STACK] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    for (place, piece) in slices.iter_mut().zip(pieces) {
        *place = slice(piece);
    }
    body(&mut slices[..pieces.len()])
}

/// Options that carry their own size: what the caller's version doesn't know is zero, what ours
/// doesn't know must be.
pub(crate) unsafe fn options<T: Copy + Default>(pointer: *const T) -> Result<T> {
    let mut options = T::default();
    if pointer.is_null() {
        return Ok(options);
    }
    // SAFETY: as for this function.
    let struct_bytes = unsafe { struct_bytes(pointer)? };
    // SAFETY: that many bytes are there: the caller's duty.
    let given = unsafe { bytes(pointer, struct_bytes)? };
    let known = struct_bytes.min(size_of::<T>());
    if given[known..].iter().any(|&byte| byte != 0) {
        return Err(Error::with(
            Errno::TOOBIG,
            "use options that only a later version knows",
        ));
    }
    // SAFETY: T is one of the structures of types.rs: plain numbers, any bytes are valid.
    unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut options).cast::<u8>(), known);
    }
    Ok(options)
}

/// Refuses flags that nothing knows.
pub(crate) fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 {
        return Err(invalid("use flags that have no meaning"));
    }
    Ok(())
}

/// Copies a result to where C wants it: its length, or ERANGE.
pub(crate) unsafe fn answer(value: &[u8], data: *mut u8, len: usize) -> Result<i64> {
    if len > 0 {
        // SAFETY: as for this function.
        let memory = unsafe { bytes_mut(data, len)? };
        let Some(memory) = memory.get_mut(..value.len()) else {
            return Err(Error::with(
                Errno::RANGE,
                "return a value in so little memory",
            ));
        };
        memory.copy_from_slice(value);
    }
    Ok(value.len() as i64)
}
