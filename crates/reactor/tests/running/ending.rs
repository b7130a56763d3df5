//! The end of an engine: by shutdown, by a drop, by a failed start, in a forked child.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_base::{Errno, Error};
use adit_block::Request;
use adit_reactor::{Engine, EngineOptions};

use crate::common::{LIMIT, State, memory, slow_memory, start, within, write_read};

#[test]
fn dropping_the_engine_waits_for_operations_whose_handles_are_gone() {
    within(LIMIT, || {
        let done = Arc::new(AtomicU64::new(0));
        let engine = start(slow_memory(2000));
        for page in 0..4 {
            let done = done.clone();
            drop(engine.spawn(move |state| async move {
                write_read(state, page, 1).await?;
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }));
        }
        drop(engine);
        assert_eq!(done.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn shutdown_runs_a_last_operation_and_refuses_later_ones() {
    within(LIMIT, || {
        let engine = start(slow_memory(1000));
        let before = engine.spawn(|state| write_read(state, 1, 1));
        engine
            .run(|state| async move {
                let reactor = state.reactor.clone();
                state
                    .reactor
                    .spawn_local(async move { reactor.sleep(Duration::from_secs(3600)).await });
                Ok(())
            })
            .expect("runs");
        engine
            .shutdown(|state| write_read(state, 2, 2))
            .expect("ends");
        before.wait().expect("was done before the end");
        let late = engine.run(|_| async { Ok(()) });
        assert_eq!(late.expect_err("ended").errno(), Errno::SHUTDOWN);
        let again = engine.shutdown(|_| async { Ok(()) });
        assert_eq!(again.expect_err("ended").errno(), Errno::SHUTDOWN);
    });
}

#[test]
fn shutdown_drops_the_device() {
    let device = memory();
    let engine = start(device.clone());
    engine.run(|state| write_read(state, 1, 1)).expect("io");
    engine.shutdown(|_| async { Ok(()) }).expect("ends");
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_failed_start_drops_the_device() {
    let device = memory();
    let started = Engine::<State>::start(
        device.clone(),
        EngineOptions::default(),
        |reactor| async move {
            reactor.submit(Request::flush(0)).await.result?;
            Err(Error::new(Errno::NXIO))
        },
    );
    assert_eq!(started.err().expect("fails").errno(), Errno::NXIO);
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_forked_child_gets_ebadf_and_the_parent_goes_on() {
    let engine = start(memory());
    engine.run(|state| write_read(state, 1, 1)).expect("io");
    // SAFETY: the child makes one call that is meant for it, and exits without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match engine.run(|_| async { Ok(()) }) {
            Err(error) if error.errno() == Errno::BADF => 0,
            _ => 1,
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    engine.run(|state| write_read(state, 2, 2)).expect("io");
}

/// The keeper was started when it was first needed. If that failed (no more threads), there was a
/// warning, and no driver for the remaining work: an operation awaited as a future never ended, and
/// no data was written back.
#[test]
fn an_engine_that_can_have_no_keeper_does_not_start() {
    const IN_CHILD: &str = "ADIT_TEST_WITHOUT_THREADS";
    if std::env::var_os(IN_CHILD).is_none() {
        // In a process of its own, whose memory for threads can be limited.
        let name = "ending::an_engine_that_can_have_no_keeper_does_not_start";
        let program = std::env::current_exe().expect("this test");
        let mut child = std::process::Command::new(program);
        child.args(["--exact", name, "--test-threads=1"]);
        let ended = child.env(IN_CHILD, "1").output().expect("runs");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    let device = memory();
    let statm = std::fs::read_to_string("/proc/self/statm").expect("proc");
    let pages: u64 = statm
        .split(' ')
        .next()
        .expect("sizes")
        .parse()
        .expect("a number");
    // Enough for an engine, too little for a thread's stack.
    let bytes = pages * 4096 + (1 << 20);
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: limits only this process, which exists for this test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let options = EngineOptions::default();
    let started = Engine::start(device.clone(), options.clone(), |_| async { Ok(()) });
    assert_eq!(started.err().expect("fails").errno(), Errno::AGAIN);
    assert_eq!(Arc::strong_count(&device), 1);
    let options = EngineOptions {
        keeper: false,
        ..options
    };
    let engine = Engine::start(device, options, |_| async { Ok(()) }).expect("needs no thread");
    engine.run(|()| async { Ok(()) }).expect("runs");
}
