//! Latency of a device by itself at depth 1: `cargo run --release -p adit-block --example
//! raw_latency -- ADDRESS...`
//!
//! Reads only, unless `--write` comes first: then it OVERWRITES the beginning of every device
//! named.

use std::time::{Duration, Instant};

use adit_base::random::Prng;
use adit_base::{Errno, PAGE_BYTES, Result};
use adit_block::{
    Buffer, Device, DeviceOptions, FileEngine, Operation, Queue, Request, Submission, open_device,
};

const ROUNDS: usize = 2000;
const TIME_MAX: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let mut addresses: Vec<String> = std::env::args().skip(1).collect();
    let write = addresses.first().is_some_and(|first| first == "--write");
    if write {
        addresses.remove(0);
    }
    for address in &addresses {
        for engine in [FileEngine::Sync, FileEngine::IoUring] {
            let options = DeviceOptions {
                engine,
                read_only: !write,
                ..DeviceOptions::default()
            };
            let device = open_device(address, &options)?;
            print!("{address:24} {engine:8?}");
            measure(&*device, Operation::Read, "read 4 KiB")?;
            if write {
                measure(&*device, Operation::Write { fua: false }, "write 4 KiB")?;
                measure(
                    &*device,
                    Operation::Write { fua: true },
                    "write 4 KiB durably",
                )?;
                measure(&*device, Operation::Flush, "write 4 KiB + flush")?;
            }
            println!();
        }
    }
    Ok(())
}

/// Prints the median in µs.
fn measure(device: &dyn Device, operation: Operation, name: &str) -> Result<()> {
    let mut queue = device.open_queue(1)?;
    let pages = device.geometry().size_bytes / PAGE_BYTES as u64;
    let mut random = Prng::new(1);
    let mut buffer = Buffer::zeroed(PAGE_BYTES);
    random.fill(buffer.try_mut().expect("a fresh buffer"));
    let mut times_ns = Vec::with_capacity(ROUNDS);
    let start = Instant::now();
    while times_ns.len() < ROUNDS && start.elapsed() < TIME_MAX {
        let offset = random.below(pages.min(1 << 14)) * PAGE_BYTES as u64;
        let before = Instant::now();
        let transfer = match operation {
            Operation::Read => Request::read(offset, buffer, 0),
            Operation::Write { fua: true } => Request::write_fua(offset, buffer, 0),
            _ => Request::write(offset, buffer, 0),
        };
        buffer = run(device, &mut *queue, transfer)?.buffers.remove(0);
        if operation == Operation::Flush {
            run(device, &mut *queue, Request::flush(0))?;
        }
        times_ns.push(before.elapsed().as_nanos() as u64);
    }
    times_ns.sort_unstable();
    print!(
        "  {name}: {:.2} µs",
        times_ns[times_ns.len() / 2] as f64 / 1000.0
    );
    Ok(())
}

fn run(device: &dyn Device, queue: &mut dyn Queue, request: Request) -> Result<Request> {
    let completion = match queue.submit(request) {
        Submission::Inline(request) => device.execute(request),
        Submission::Full(_) => return Err(Errno::AGAIN.into()),
        Submission::Accepted => {
            let doorbell = queue.doorbell();
            doorbell.ring()?;
            let mut done = Vec::with_capacity(1);
            while queue.poll(&mut done) == 0 {
                doorbell.wait(None);
            }
            done.remove(0)
        }
    };
    completion.result?;
    Ok(completion.request)
}
