//! The lock for operations.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use adit_base::Result;
use adit_reactor::sync::join_all;

use crate::common::{memory, start};

#[test]
fn the_lock_is_granted_in_the_order_of_arrival() {
    let engine = start(memory());
    engine
        .run(|state| async move {
            let first = state.lock.write().await;
            let take = |number: u64, exclusive: bool| async move {
                if exclusive {
                    let _guard = state.lock.write().await;
                    state.log.borrow_mut().push(number);
                    state.reactor.yield_now().await;
                } else {
                    let _guard = state.lock.read().await;
                    state.log.borrow_mut().push(number);
                    state.reactor.yield_now().await;
                }
                Ok(())
            };
            let release = async {
                assert!(state.lock.try_read().is_none());
                state.reactor.yield_now().await;
                drop(first);
                assert!(
                    state.lock.try_read().is_none(),
                    "nobody overtakes the queue"
                );
                Ok(())
            };
            type Boxed<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
            let all: Vec<Boxed<'_>> = vec![
                Box::pin(take(1, false)),
                Box::pin(take(2, false)),
                Box::pin(take(3, true)),
                Box::pin(take(4, false)),
                Box::pin(release),
            ];
            for result in join_all(all).await {
                result?;
            }
            assert_eq!(*state.log.borrow(), [1, 2, 3, 4]);
            assert!(!state.lock.is_locked());
            Ok(())
        })
        .expect("runs");
}

#[test]
fn a_dropped_waiter_leaves_the_queue_or_gives_back_what_it_was_granted() {
    let engine = start(memory());
    engine
        .run(|state| async move {
            let held = state.lock.read().await;
            let mut waiting = Box::pin(state.lock.write());
            std::future::poll_fn(|context| {
                assert!(waiting.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            assert!(state.lock.try_read().is_none(), "the writer is first");
            drop(waiting);
            assert!(state.lock.try_read().is_some());
            let mut waiting = Box::pin(state.lock.write());
            std::future::poll_fn(|context| {
                assert!(waiting.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(held);
            assert!(state.lock.is_locked_exclusively(), "granted");
            drop(waiting);
            assert!(!state.lock.is_locked());
            Ok(())
        })
        .expect("runs");
}

#[test]
fn a_downgraded_lock_admits_readers() {
    let engine = start(memory());
    engine
        .run(|state| async move {
            let writer = state.lock.write().await;
            assert!(state.lock.try_read().is_none());
            let reader = writer.downgrade();
            assert!(state.lock.try_read().is_some());
            assert!(state.lock.try_write().is_none());
            drop(reader);
            assert!(state.lock.try_write().is_some());
            Ok(())
        })
        .expect("runs");
}
