//! The requests of a worker: the way to the device's queue or to a thread that executes them, and
//! the way of their completions back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use adit_block::{Completion, Doorbell, Request, Submission};

use super::Reactor;
use crate::reactor::io::Submit;
use crate::reactor::node::Node;
use crate::reactor::pooled::PooledOperation;
use crate::reactor::task::{Task, TaskId, TaskKind};

/// Most requests that are searched for those of one operation.
const SEARCHED_MAX: usize = 16;

impl Reactor {
    /// Submits a request to the device now, or has a thread execute it soon; await the result for
    /// its completion, which carries the request and its token back.
    pub fn submit(&self, mut request: Request) -> Submit<'_> {
        let user_token = request.token;
        let token = self.slots.borrow_mut().insert();
        request.token = token;
        if self.prefers_inline() {
            self.add_inline_request(request);
        } else if self.overflow.borrow().is_empty() {
            self.start(request);
        } else {
            self.overflow.borrow_mut().push_back(request);
        }
        Submit {
            reactor: self,
            token,
            user_token,
            taken: false,
        }
    }

    /// Whether the thread of the current operation executes a request better than the queue: a
    /// caller would wait for the device anyway, and its own system call saves a doorbell ring and
    /// another thread's reaping. Only one request at a time; the operation's others are in flight
    /// meanwhile.
    fn prefers_inline(&self) -> bool {
        if !self.inline_or_queued || !self.is_usable() {
            return false;
        }
        let id = self.current.get();
        let task = self.tasks.borrow_mut().get(id);
        let (waiting, executing) = (self.inline_requests.borrow(), self.executing.borrow());
        let mut searched = waiting.iter().take(SEARCHED_MAX);
        task.is_some_and(|task| task.vtable.kind == TaskKind::Stack)
            && !searched.any(|(other, _)| *other == id)
            && !executing.iter().any(|(_, other)| *other == id)
    }

    fn add_inline_request(&self, request: Request) {
        let mut requests = self.inline_requests.borrow_mut();
        requests.push_back((self.current.get(), request));
    }

    /// Gives a request to the queue; false when the queue was full and the request waits again.
    /// After the end or a panic nothing is submitted.
    fn start(&self, request: Request) -> bool {
        if !self.is_usable() {
            return true;
        }
        let mut queue = self.queue.borrow_mut();
        let Some(queue) = queue.as_mut() else {
            return true;
        };
        let token = request.token;
        match queue.submit(request) {
            Submission::Accepted => {
                self.in_flight.set(self.in_flight.get() + 1);
                self.slots.borrow_mut().set_queued(token);
                self.doorbell_pending.set(true);
            }
            Submission::Inline(request) => self.add_inline_request(request),
            // No completion will make room.
            Submission::Full(request) if self.in_flight.get() == 0 => {
                self.add_inline_request(request);
            }
            Submission::Full(request) => {
                self.overflow.borrow_mut().push_front(request);
                return false;
            }
        }
        true
    }

    /// A request for this thread to execute, one of its own operation first. While another thread
    /// executes that operation's request, this thread takes none of the worker's own tasks: it
    /// would still write a checkpoint's pages long after its operation is done.
    pub(crate) fn take_inline_request(&self, own: Option<&Node>) -> Option<Request> {
        let mut requests = self.inline_requests.borrow_mut();
        let mut executing = self.executing.borrow_mut();
        let mut at = 0;
        if let Some(own) = own
            && !requests.is_empty()
        {
            let data = own.task().data;
            let mut tasks = self.tasks.borrow_mut();
            let mut is_own = |id: TaskId| tasks.get(id).is_some_and(|task| task.data == data);
            let mut searched = requests.iter().take(SEARCHED_MAX);
            if let Some(first) = searched.position(|(id, _)| is_own(*id)) {
                at = first;
            } else if executing.iter().any(|(_, id)| is_own(*id)) {
                let mut is_operation = |id: TaskId| {
                    let task = tasks.get(id);
                    task.is_some_and(|task| task.vtable.kind != TaskKind::Local)
                };
                at = requests.iter().position(|(id, _)| is_operation(*id))?;
            }
        }
        let (id, request) = requests.remove(at)?;
        executing.push((request.token, id));
        Some(request)
    }

    /// A thread executed the request with this token, or any one if the device panicked. Returns
    /// the task that submitted it.
    pub(crate) fn end_execution(&self, token: Option<u64>) -> TaskId {
        let mut executing = self.executing.borrow_mut();
        let at = executing.iter().position(|(of, _)| token == Some(*of));
        executing.swap_remove(at.unwrap_or(0)).1
    }

    /// Whether requests wait for a thread to execute them.
    pub fn has_inline_requests(&self) -> bool {
        self.inline_request_count() > 0
    }

    pub(crate) fn inline_request_count(&self) -> usize {
        self.inline_requests.borrow().len()
    }

    /// Whether the queue has requests, or threads execute some.
    pub fn has_requests_under_way(&self) -> bool {
        self.in_flight.get() > 0 || !self.executing.borrow().is_empty()
    }

    /// The thread that took the request drives on instead.
    pub(crate) fn put_back_request(&self, request: Request) {
        let id = self.end_execution(Some(request.token));
        self.inline_requests.borrow_mut().push_front((id, request));
    }

    pub(crate) fn deliver(&self, completion: Completion) {
        let waker = self.slots.borrow_mut().deliver(completion);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Reaps the queue's completions. True if there were any, or the queue panicked.
    pub(crate) fn reap_completions(&self) -> bool {
        let mut completions = self.completions.take();
        let polled = match self.queue.borrow_mut().as_mut() {
            Some(queue) => catch_unwind(AssertUnwindSafe(|| queue.poll(&mut completions))),
            None => return false,
        };
        if let Err(panic) = polled {
            self.note_panic_of_no_task(&*panic);
            // Its requests never come back; their memory stays with it, for good.
            std::mem::forget(self.queue.borrow_mut().take());
            self.in_flight.set(0);
            return true;
        }
        let any = !completions.is_empty();
        // A queue that panicked in `submit` may have accepted a request that wasn't counted.
        let left = self.in_flight.get().saturating_sub(completions.len());
        self.in_flight.set(left);
        for completion in completions.drain(..) {
            self.deliver(completion);
        }
        self.completions.replace(completions);
        if any {
            self.retry_overflow();
        }
        any
    }

    /// Whether the queue has a request of this thread's operation, or of one that it waits for in
    /// `Handle::wait`, `wait_any` or `CompletionQueue::wait`.
    pub(crate) fn awaits_own_request(&self, own: &Node) -> bool {
        let data = own.task().data;
        let mut tasks = self.tasks.borrow_mut();
        let Some((own, _)) = tasks.find(|task| task.data == data) else {
            return false;
        };
        let mut is_awaited = |id: TaskId| {
            let spawned = |task: &Task| task.vtable.kind == TaskKind::Spawned;
            tasks.get(id).filter(spawned).is_some_and(|task| {
                // SAFETY: a spawned task's data is its operation, valid while it is in the table.
                let operation = unsafe { &*task.data.cast::<PooledOperation>() };
                operation.local_waiter() == Some(own) || operation.reports_to_queue_of(own)
            })
        };
        self.slots
            .borrow()
            .any_queued(|id| id == own || is_awaited(id))
    }

    /// Submits requests that found the queue full, as far as there is room now.
    fn retry_overflow(&self) {
        loop {
            let next = self.overflow.borrow_mut().pop_front();
            let Some(request) = next else { return };
            match catch_unwind(AssertUnwindSafe(|| self.start(request))) {
                Ok(true) => {}
                Ok(false) => return,
                // The request is lost. Those in flight may still be reaped.
                Err(panic) => return self.note_panic_of_no_task(&*panic),
            }
        }
    }

    /// Drops requests that no device has seen.
    pub(crate) fn discard_requests(&self) {
        self.inline_requests.borrow_mut().clear();
        self.overflow.borrow_mut().clear();
    }

    pub(crate) fn doorbell(&self) -> Option<Arc<dyn Doorbell>> {
        self.doorbell.borrow().clone()
    }
}
