//! Submitted operations: a callback, or a handle to poll and wait for.

use crate::arguments::{Out, bytes, bytes_mut, handle, handle_mut, invalid, items, out, timeout};
use crate::handles::Done;
use crate::handles::FileHandle;
use crate::result::{failed, guard, guard_int, guard_unit, negative};
use adit::{Buffer, Pending, Result};
use std::ffi::{c_int, c_void};

/// Behind `adit_op *`.
pub struct OperationHandle {
    /// None when `result` is there.
    running: Option<Pending<i64>>,
    result: Result<i64>,
}

/// The context of a callback, on its way to whichever thread completes.
pub(crate) struct Context(pub(crate) *mut c_void);

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

    fn tell(self, running: Pending<i64>) {
        match self {
            Telling::Callback(done, context) => running.on_complete(move |result| {
                let context: Context = context;
                let result = result.unwrap_or_else(|error| negative(&error));
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
pub(crate) unsafe fn borrowed(data: *const c_void, len: usize) -> Result<Buffer> {
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
    start: impl FnOnce() -> Result<Pending<i64>>,
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
        Ok(unsafe { file.read_number_async(memory.as_mut_ptr(), len, offset) })
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
        Ok(file.write_number_async(buffer, offset))
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
        Ok(file.append_number_async(buffer))
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
        Ok(file.sync_all_number_async())
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
        Ok(file.sync_data_number_async())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_op_poll(op: *mut OperationHandle, result: *mut i64) -> c_int {
    guard_int(|| {
        let place = out(result)?;
        // SAFETY: promised by adit.h.
        let op = unsafe { handle_mut(op)? };
        if let Some(running) = &mut op.running {
            match running.poll_once() {
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
pub unsafe extern "C" fn adit_op_wait_any(
    ops: *const *mut OperationHandle,
    count: usize,
    done: *mut u8,
    timeout_ns: i64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let ops = unsafe { items(ops, count)? };
        // SAFETY: promised by adit.h.
        let op = |at: usize| ops.get(at).and_then(|op: &*mut _| unsafe { op.as_ref() });
        let is_done = |op: &OperationHandle| op.running.as_ref().is_none_or(Pending::is_done);
        let any = (0..count).any(|at| op(at).is_some_and(&is_done));
        if !any {
            let running = |at| op(at).and_then(|op: &OperationHandle| op.running.as_ref());
            if !(0..count).any(|at| op(at).is_some()) {
                return Err(invalid("wait for any of no operations"));
            }
            Pending::wait_any_of(count, running, timeout(timeout_ns))?;
        }
        let mut sum = 0;
        for at in 0..count {
            let is_done = op(at).is_some_and(&is_done);
            sum += i64::from(is_done);
            if !done.is_null() {
                // SAFETY: adit.h: there is room for `count` bytes.
                unsafe { done.add(at).write(is_done.into()) };
            }
        }
        Ok(sum)
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
