//! Completion queues from Rust: any of many operations, threads, the end, a poisoned volume.

#[path = "support/served.rs"]
mod served;

use adit::{Buffer, CompletionQueue, Errno, File, OpenOptions, Pending, Volume};
use std::os::fd::AsRawFd;
use std::time::Duration;

fn volume_and_file() -> (Volume, File) {
    let volume = served::open("mem:64M").expect("opened");
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .clone();
    let file = volume.open_file("/file", &options).expect("opened");
    (volume, file)
}

#[test]
fn each_operation_comes_back_once_with_its_data() {
    let (volume, file) = volume_and_file();
    let queue = CompletionQueue::new(&volume).expect("made");
    for page in 0..100 {
        let operation = file.write_at_async(Buffer::zeroed(4096), page * 4096);
        queue.add(operation, page).expect("added");
    }
    let mut pages = Vec::new();
    while !queue.is_empty() {
        for (page, result) in queue.wait(1, 9, None).expect("waited") {
            result.expect("written");
            pages.push(page);
        }
    }
    pages.sort_unstable();
    assert!(pages.into_iter().eq(0..100));
}

#[test]
fn a_full_queue_begins_nothing() {
    let (volume, file) = volume_and_file();
    let queue = CompletionQueue::with_capacity(&volume, 1).expect("made");
    queue.add(file.sync_all_async(), 1).expect("added");
    let begin = || unreachable!("it is full");
    let refused = queue.add_with(begin).expect_err("full");
    assert_eq!(refused.errno(), Errno::AGAIN);
    assert_eq!(queue.wait(1, 1, None).expect("waited").len(), 1);
    queue.post(Ok(()), 2).expect("there is room");
    let none = CompletionQueue::<()>::with_capacity(&volume, 0);
    assert_eq!(none.expect_err("useless").errno(), Errno::INVAL);
}

#[test]
fn a_queue_keeps_its_volume_open_and_waits_at_its_end() {
    let (volume, file) = volume_and_file();
    let queue = CompletionQueue::new(&volume).expect("made");
    let closed = volume.clone().close().expect_err("in use");
    assert_eq!(closed.errno(), Errno::BUSY);
    for page in 0..100 {
        let operation = file.write_at_async(Buffer::zeroed(4096), page * 4096);
        queue.add(operation, page).expect("added");
    }
    drop(queue);
    assert_eq!(file.len().expect("open"), 100 * 4096);
    drop(file);
    volume.close().expect("nothing else holds it");
}

#[test]
fn threads_share_a_queue_and_each_completion_goes_to_one() {
    let (volume, file) = volume_and_file();
    let queue = CompletionQueue::<usize, Option<u64>>::new(&volume).expect("made");
    let mut memory = vec![0; 2 * 1000 * 64];
    let taken = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut taken = 0;
                    loop {
                        for (data, _) in queue.wait(1, 1, None).expect("waited") {
                            match data {
                                Some(_) => taken += 1,
                                None => return taken,
                            }
                        }
                    }
                })
            })
            .collect();
        let submitters: Vec<_> = memory
            .chunks_mut(1000 * 64)
            .map(|memory| {
                scope.spawn(|| {
                    for (number, memory) in (0..).zip(memory.chunks_mut(64)) {
                        let memory = memory.as_mut_ptr();
                        // SAFETY: of this operation alone, and there until all are done.
                        let read = unsafe { file.read_into_async(memory, 64, number) };
                        queue.add(read, Some(number)).expect("added");
                    }
                })
            })
            .collect();
        for submitter in submitters {
            submitter.join().expect("no panic");
        }
        for _ in &takers {
            queue.post(Ok(0), None).expect("posted");
        }
        takers
            .into_iter()
            .map(|taker| taker.join().expect("no panic"))
            .sum::<usize>()
    });
    // The ends may have overtaken operations under way.
    let mut left = 0;
    while !queue.is_empty() {
        left += queue.wait(1, 4000, None).expect("waited").len();
    }
    assert_eq!(taken + left, 2000);
}

#[test]
fn any_of_several_operations_is_waited_for() {
    let (volume, file) = volume_and_file();
    assert_eq!(
        Pending::<()>::wait_any(&mut [], None).expect("nothing"),
        None
    );
    let mut syncs = [file.sync_all_async(), volume.sync_async()];
    let first = Pending::wait_any(&mut syncs, None).expect("waited");
    assert!(
        syncs[first.expect("one")]
            .poll_once()
            .expect("done")
            .is_ok()
    );
    let mut alone = file.sync_data_async();
    while !alone
        .wait_timeout(Duration::from_millis(1))
        .expect("waited")
    {}
    alone.poll_once().expect("done").expect("synced");
}

#[test]
fn the_event_is_the_queues_and_goes_with_it() {
    let (volume, file) = volume_and_file();
    let queue = CompletionQueue::new(&volume).expect("made");
    let event = queue.event().expect("made").as_raw_fd();
    assert_eq!(queue.event().expect("the same").as_raw_fd(), event);
    let ready = || {
        let mut poll = libc::pollfd {
            fd: event,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which is there.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    };
    assert!(!ready());
    queue.add(file.sync_all_async(), 0).expect("added");
    while !ready() {
        std::thread::yield_now();
    }
    assert_eq!(queue.wait(1, 1, None).expect("waited").len(), 1);
    // The thread that ended the operation may be about to find that nothing is left.
    while ready() {
        std::thread::yield_now();
    }
}
