//! Submitted operations: a callback, or a handle to poll and wait for.

use crate::arguments::{Out, bytes, bytes_mut, handle, handle_mut, invalid, out};
use crate::file::FileHandle;
use crate::result::{failed, guard, guard_int, guard_unit, negative};
use adit::{Buffer, Pending, Result};
use std::ffi::{c_int, c_void};

/// `adit_done`.
pub type Done = Option<unsafe extern "C" fn(context: *mut c_void, result: i64)>;

/// What is under way, by what it answers.
enum Running {
    /// A number of bytes.
    Read(Pending<usize>),
    /// An offset.
    Append(Pending<u64>),
    /// Nothing; this is the result that C expects.
    Plain(Pending<()>, i64),
}

impl Running {
    fn poll(&mut self) -> Option<Result<i64>> {
        Some(match self {
            Running::Read(operation) => operation.poll_once()?.map(|len| len as i64),
            Running::Append(operation) => operation.poll_once()?.map(|at| at as i64),
            Running::Plain(operation, success) => operation.poll_once()?.map(|()| *success),
        })
    }

    fn wait(self) -> Result<i64> {
        match self {
            Running::Read(operation) => operation.wait().map(|len| len as i64),
            Running::Append(operation) => operation.wait().map(|at| at as i64),
            Running::Plain(operation, success) => operation.wait().map(|()| success),
        }
    }

    fn on_complete(self, done: impl FnOnce(i64) + Send + 'static) {
        match self {
            Running::Read(operation) => {
                operation.on_complete(|result| done(to_number(result, |len| len as i64)));
            }
            Running::Append(operation) => {
                operation.on_complete(|result| done(to_number(result, |at| at as i64)));
            }
            Running::Plain(operation, success) => {
                operation.on_complete(move |result| done(to_number(result, |()| success)));
            }
        }
    }
}

fn to_number<T>(result: Result<T>, success: impl FnOnce(T) -> i64) -> i64 {
    match result {
        Ok(value) => success(value),
        Err(error) => negative(&error),
    }
}

/// Behind `adit_op *`.
pub struct OperationHandle {
    /// None when `result` is there.
    running: Option<Running>,
    result: Result<i64>,
}

/// The context of a callback, on its way to whichever thread completes.
struct Context(*mut c_void);

// SAFETY: adit.h says that the callback, and so its context, is used by any thread.
unsafe impl Send for Context {}

/// Which of the two ways of telling was chosen.
enum Telling {
    Callback(unsafe extern "C" fn(*mut c_void, i64), Context),
    Handle(Out<*mut OperationHandle>),
}

impl Telling {
    fn of(done: Done, context: *mut c_void, op: *mut *mut OperationHandle) -> Result<Telling> {
        match done {
            Some(done) if op.is_null() => Ok(Telling::Callback(done, Context(context))),
            None if !op.is_null() => Ok(Telling::Handle(out(op)?)),
            _ => Err(invalid(
                "submit an operation without exactly one of done and op",
            )),
        }
    }

    fn tell(self, running: Running) {
        match self {
            Telling::Callback(done, context) => running.on_complete(move |result| {
                let context: Context = context;
                // SAFETY: adit.h makes the callback callable from any thread, once.
                unsafe { done(context.0, result) };
            }),
            Telling::Handle(op) => op.give(OperationHandle {
                running: Some(running),
                result: Ok(0),
            }),
        }
    }
}

/// Memory of the caller's as a buffer to write from.
unsafe fn borrowed(data: *const c_void, len: usize) -> Result<Buffer> {
    if u32::try_from(len).is_err() {
        return Err(invalid("submit 4 GiB or more at once"));
    }
    // SAFETY: as for this function.
    let memory = unsafe { bytes(data, len)? };
    // SAFETY: adit.h: it stays as it is until the operation is done. Only read.
    Ok(unsafe { Buffer::borrowed(memory.as_ptr().cast_mut(), len) })
}

/// Starts an operation that tells its end in the way that was chosen.
fn submit(
    done: Done,
    context: *mut c_void,
    op: *mut *mut OperationHandle,
    start: impl FnOnce() -> Result<Running>,
) -> c_int {
    guard_unit(|| {
        let telling = Telling::of(done, context, op)?;
        telling.tell(start()?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pread_submit(
    file: *mut FileHandle,
    data: *mut c_void,
    len: usize,
    offset: u64,
    done: Done,
    context: *mut c_void,
    op: *mut *mut OperationHandle,
) -> c_int {
    submit(done, context, op, || {
        // SAFETY: promised by adit.h.
        let (file, memory) = unsafe { (&handle(file)?.file, bytes_mut(data, len)?) };
        // SAFETY: adit.h: the memory is ours until the operation is done.
        let operation = unsafe { file.read_into_async(memory.as_mut_ptr(), len, offset) };
        Ok(Running::Read(operation))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_pwrite_submit(
    file: *mut FileHandle,
    data: *const c_void,
    len: usize,
    offset: u64,
    done: Done,
    context: *mut c_void,
    op: *mut *mut OperationHandle,
) -> c_int {
    submit(done, context, op, || {
        // SAFETY: promised by adit.h.
        let (file, buffer) = unsafe { (&handle(file)?.file, borrowed(data, len)?) };
        let operation = file.write_at_async(buffer, offset);
        Ok(Running::Plain(operation, len as i64))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_append_submit(
    file: *mut FileHandle,
    data: *const c_void,
    len: usize,
    done: Done,
    context: *mut c_void,
    op: *mut *mut OperationHandle,
) -> c_int {
    submit(done, context, op, || {
        // SAFETY: promised by adit.h.
        let (file, buffer) = unsafe { (&handle(file)?.file, borrowed(data, len)?) };
        Ok(Running::Append(file.append_async(buffer)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fsync_submit(
    file: *mut FileHandle,
    done: Done,
    context: *mut c_void,
    op: *mut *mut OperationHandle,
) -> c_int {
    submit(done, context, op, || {
        // SAFETY: promised by adit.h.
        let file = unsafe { &handle(file)?.file };
        Ok(Running::Plain(file.sync_all_async(), 0))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_fdatasync_submit(
    file: *mut FileHandle,
    done: Done,
    context: *mut c_void,
    op: *mut *mut OperationHandle,
) -> c_int {
    submit(done, context, op, || {
        // SAFETY: promised by adit.h.
        let file = unsafe { &handle(file)?.file };
        Ok(Running::Plain(file.sync_data_async(), 0))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_op_poll(op: *mut OperationHandle, result: *mut i64) -> c_int {
    guard_int(|| {
        let place = out(result)?;
        // SAFETY: promised by adit.h.
        let op = unsafe { handle_mut(op)? };
        if let Some(running) = &mut op.running {
            match running.poll() {
                None => return Ok(0),
                Some(result) => op.result = result,
            }
            op.running = None;
        }
        // What failed is the operation, not this call: its words are kept all the same.
        place.put(op.result.clone().unwrap_or_else(failed));
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_op_wait(op: *mut OperationHandle) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let op = unsafe { handle_mut(op)? };
        if let Some(running) = op.running.take() {
            op.result = running.wait();
        }
        op.result.clone()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_op_release(op: *mut OperationHandle) {
    guard_unit(|| {
        if !op.is_null() {
            // SAFETY: it came from `give`, and by adit.h this is the last use of it.
            drop(unsafe { Box::from_raw(op) });
        }
        Ok(())
    });
}
