//! Many requests in flight on descriptors of the kernel, by io_uring: the way of the kernel's file
//! systems and of the raw device.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use super::Flow;
use crate::measurement::data::AlignedBuffer;
use crate::measurement::errors::while_doing;
use crate::measurement::sample::{Sample, Stopwatch};

/// Keeps `flow.depth` requests in flight until the limit, then waits for the rest. `place(turn)`
/// says which file, and where.
pub(crate) fn by_io_uring<F: AsRawFd>(
    files: &[F],
    flow: &Flow<'_>,
    place: &mut dyn FnMut(u64) -> (usize, u64),
) -> io::Result<Sample> {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .build(flow.depth as u32)
        .map_err(|error| while_doing("set up io_uring", error))?;
    // A buffer and a start for each request that can be in flight; free ones are named here.
    let mut buffers: Vec<AlignedBuffer> = (0..flow.depth)
        .map(|_| AlignedBuffer::new(flow.request_bytes))
        .collect();
    let mut started = vec![Instant::now(); flow.depth];
    let mut free: Vec<usize> = (0..flow.depth).collect();
    let mut watch = Stopwatch::start();
    let mut turn = 0;
    let mut failed = None;
    loop {
        let over = failed.is_some() || watch.is_over(&flow.limit);
        while !over && let Some(slot) = free.pop() {
            let (file, offset_bytes) = place(turn);
            let fd = types::Fd(files[file].as_raw_fd());
            let len_bytes = flow.request_bytes as u32;
            let entry = match flow.write {
                true => {
                    let from = flow.noise.at(turn, flow.request_bytes);
                    opcode::Write::new(fd, from.as_ptr(), len_bytes)
                        .offset(offset_bytes)
                        .build()
                }
                false => opcode::Read::new(fd, buffers[slot].as_mut_ptr(), len_bytes)
                    .offset(offset_bytes)
                    .build(),
            };
            started[slot] = Instant::now();
            // SAFETY: the noise outlives the flow; the slot's buffer isn't used until its
            // completion was seen, and both outlive the ring's requests, all of which are waited
            // for below. The queue has a place: there are as many as slots.
            let pushed = unsafe { ring.submission().push(&entry.user_data(slot as u64)) };
            if let Err(error) = pushed {
                failed = Some(io::Error::other(error));
                free.push(slot);
                break;
            }
            turn += 1;
        }
        if free.len() == flow.depth {
            break;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Requests may be in flight into our buffers: nothing here may be freed.
            Err(error) => {
                std::mem::forget(buffers);
                return Err(while_doing("wait for io_uring", error));
            }
        }
        for completion in ring.completion() {
            let slot = completion.user_data() as usize;
            match completion.result() {
                done if done == flow.request_bytes as i32 => watch.record(started[slot].elapsed()),
                done if done < 0 => failed = Some(io::Error::from_raw_os_error(-done)),
                done => {
                    failed = Some(io::Error::other(format!(
                        "only {done} of {} bytes were transferred",
                        flow.request_bytes
                    )))
                }
            }
            free.push(slot);
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(watch.stop()),
    }
}
