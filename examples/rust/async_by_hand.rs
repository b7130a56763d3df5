//! Asynchronous operations without an executor: start many, look at them now and then.
//!
//! An `Pending` is also a future: `file.read_at_async(buffer, 0).await?` works in any executor.

use adit::{OpenOptions, Volume};

fn main() -> adit::Result<()> {
    let volume = Volume::open("mem:64M")?;
    let file = volume.open_file(
        "/data",
        OpenOptions::new().read(true).write(true).create(true),
    )?;

    let mut writes = Vec::new();
    for page in 0..64_u64 {
        let mut buffer = volume.buffer(4096)?;
        buffer
            .try_mut()
            .expect("nobody else has it")
            .fill(page as u8);
        writes.push(file.write_at_async(buffer, page * 4096));
    }
    let mut polls = 0;
    while !writes.is_empty() {
        // Polling drives the volume: no thread is needed for it.
        let mut failed = None;
        writes.retain_mut(|write| match write.poll_once() {
            None => true,
            Some(result) => {
                failed = failed.take().or(result.err());
                false
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        polls += 1;
    }
    println!("64 writes done after looking {polls} times");

    // Reads of cached data are done at once; the buffer comes back with what was read.
    let buffer = file.read_at_async(volume.buffer(4096)?, 7 * 4096).wait()?;
    assert_eq!(buffer.as_slice(), [7; 4096]);
    file.sync_data_async().wait()?;

    drop(file);
    volume.close()
}
