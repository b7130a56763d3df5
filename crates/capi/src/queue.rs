//! Completion queues: submitting many operations and waiting for any of them.

use crate::arguments::{
    bytes_mut, check_flags, handle, invalid, items, options, out, take, timeout,
};
use crate::handles::Done;
use crate::handles::FileHandle;
use crate::handles::VolumeHandle;
use crate::operation::{Context, borrowed};
use crate::result::{guard, guard_int, guard_unit, negative};
use crate::types::{
    AditCompletion, AditRequest, OP_APPEND, OP_FDATASYNC, OP_FSYNC, OP_READ, OP_WRITE, QueueOptions,
};
use adit::{CompletionQueue, Errno, Error, Pending, Result};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// What comes back with a completion.
struct Ticket {
    user_data: Context,
    done: Done,
}

/// Behind `adit_queue *`.
pub struct QueueHandle {
    queue: CompletionQueue<i64, Ticket>,
}

/// Completions that `adit_queue_run` takes at once.
const RUN_BATCH: usize = 32;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_create(
    volume: *mut VolumeHandle,
    given: *const QueueOptions,
    queue: *mut *mut QueueHandle,
) -> c_int {
    guard_unit(|| {
        let place = out(queue)?;
        // SAFETY: promised by adit.h.
        let (volume, given) = unsafe { (&handle(volume)?.volume, options(given)?) };
        check_flags(given.flags, 0)?;
        let queue = match given.entries_max {
            0 => CompletionQueue::new(volume)?,
            entries_max => CompletionQueue::with_capacity(volume, entries_max as usize)?,
        };
        place.give(QueueHandle { queue });
        Ok(())
    })
}

/// Begins the operation of a request.
unsafe fn begin(request: &AditRequest) -> Result<Pending<i64>> {
    check_flags(request.flags, 0)?;
    if request.reserved != 0 {
        return Err(invalid("submit a request whose reserved field is not zero"));
    }
    let (data, len, offset) = (request.data, request.len, request.offset);
    // SAFETY: promised by adit.h.
    let file = unsafe { &handle::<FileHandle>(request.file)?.file };
    Ok(match request.operation {
        OP_READ => {
            // SAFETY: adit.h: the memory is ours until the operation is done.
            unsafe {
                let memory = bytes_mut(data, len)?;
                file.read_number_async(memory.as_mut_ptr(), len, offset)
            }
        }
        // SAFETY: promised by adit.h.
        OP_WRITE => file.write_number_async(unsafe { borrowed(data, len)? }, offset),
        // SAFETY: promised by adit.h.
        OP_APPEND => file.append_number_async(unsafe { borrowed(data, len)? }),
        OP_FSYNC => file.sync_all_number_async(),
        OP_FDATASYNC => file.sync_data_number_async(),
        _ => {
            return Err(invalid(
                "submit a request for an operation that there is not",
            ));
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_submit(
    queue: *mut QueueHandle,
    requests: *const AditRequest,
    count: usize,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let (queue, requests) = unsafe { (&handle(queue)?.queue, items(requests, count)?) };
        for (number, request) in requests.iter().enumerate() {
            let submitted = queue.add_with(|| {
                let ticket = Ticket {
                    user_data: Context(request.user_data),
                    done: request.done,
                };
                // SAFETY: promised by adit.h.
                Ok((unsafe { begin(request)? }, ticket))
            });
            match submitted {
                Ok(()) => {}
                Err(error) if number == 0 => return Err(error),
                Err(_) => return Ok(number as i64),
            }
        }
        Ok(count as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_post(
    queue: *mut QueueHandle,
    done: Done,
    user_data: *mut c_void,
    result: i64,
) -> c_int {
    guard_unit(|| {
        let user_data = Context(user_data);
        // SAFETY: promised by adit.h.
        let queue = unsafe { &handle(queue)?.queue };
        queue.post(Ok(result), Ticket { user_data, done })
    })
}

fn completion(ticket: &Ticket, result: Result<i64>) -> AditCompletion {
    AditCompletion {
        user_data: ticket.user_data.0,
        result: result.unwrap_or_else(|error| negative(&error)),
        done: ticket.done,
        reserved: 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_wait(
    queue: *mut QueueHandle,
    completions: *mut AditCompletion,
    min: usize,
    max: usize,
    timeout_ns: i64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let queue = unsafe { &handle(queue)?.queue };
        if min > max || max == 0 || max > isize::MAX as usize / size_of::<AditCompletion>() {
            return Err(invalid("wait for such a number of completions"));
        }
        let first = out(completions)?.pointer();
        let mut count = 0;
        queue.wait_each(min, max, timeout(timeout_ns), |ticket, result| {
            // SAFETY: adit.h: there is room for `max` completions, and there are no more.
            unsafe { first.add(count).write(completion(&ticket, result)) };
            count += 1;
        })?;
        Ok(count as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_run(
    queue: *mut QueueHandle,
    min: usize,
    max: usize,
    timeout_ns: i64,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let queue = unsafe { &handle(queue)?.queue };
        if min > max || max == 0 {
            return Err(invalid("wait for such a number of completions"));
        }
        let limit = timeout(timeout_ns);
        // A time limit beyond the clock is none.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut count = 0;
        loop {
            let room = (max - count).min(RUN_BATCH);
            let wanted = min.saturating_sub(count).min(room);
            let mut taken = [const { None }; RUN_BATCH];
            let mut places = taken.iter_mut();
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = if count == 0 { limit } else { left };
            let got = queue.wait_each(wanted, room, left, |ticket, result| {
                if let Some(place) = places.next() {
                    *place = Some(completion(&ticket, result));
                }
            });
            let got = match got {
                Err(error) if count == 0 => return Err(error),
                got => got.unwrap_or(0),
            };
            for completion in taken.into_iter().flatten() {
                if let Some(done) = completion.done {
                    // SAFETY: adit.h: the callback of this request, with its context.
                    unsafe { done(completion.user_data, completion.result) };
                }
            }
            count += got;
            if got < room || count == max {
                return Ok(count as i64);
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_eventfd(queue: *mut QueueHandle) -> c_int {
    // SAFETY: promised by adit.h.
    guard_int(|| Ok(unsafe { &handle(queue)?.queue }.event()?.as_raw_fd()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_pending(queue: *mut QueueHandle) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let queue = unsafe { &handle(queue)?.queue };
        if queue.is_inherited() {
            Err(Error::new(Errno::BADF))
        } else {
            Ok(queue.len() as i64)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_queue_destroy(queue: *mut QueueHandle) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let queue = unsafe { take(queue)? };
        let is_inherited = queue.queue.is_inherited();
        drop(queue);
        if is_inherited {
            Err(Error::new(Errno::BADF))
        } else {
            Ok(())
        }
    })
}
