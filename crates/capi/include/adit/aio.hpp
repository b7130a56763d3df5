/*
 * Calls like libaio's, over the descriptors of an ApiBase. They have libaio's names and results
 * (negative errnos) in a namespace of their own, so that both can be in one program.
 *
 * Differences from libaio and the kernel:
 *
 *   io_setup      takes the ApiBase whose descriptors the requests name; it must outlive the
 *                 context.
 *   io_submit     never blocks for room: -EAGAIN if the context's maximum is in flight. Events that
 *                 were not fetched yet count.
 *   io_cancel     cancels nothing: -EINPROGRESS for a request in flight, whose event comes from
 *                 io_getevents as ever; -EINVAL for any other.
 *   io_destroy    waits for the requests in flight; their events are lost.
 *   io_getevents  polls (adit.hpp says how), which also lets the volume make progress. It sleeps
 *                 without polling while nothing is in flight.
 *
 * Threads: any number may submit and fetch at the same time; io_destroy only when no other call on
 * the context is running. An iocb may be reused or freed as soon as io_submit has returned; events
 * give its address back. The data's memory is the operation's until its event was fetched.
 *
 * Invariant: each request is in exactly one place: running_ (its future may be done), or an event
 * that a caller has. Everything in io_context is under mutex_.
 */
#ifndef ADIT_AIO_HPP
#define ADIT_AIO_HPP

#include "api.hpp"

#include <condition_variable>
#include <ctime>
#include <new>

namespace adit {
namespace aio {

enum io_iocb_cmd : short {
    IO_CMD_PREAD = 0,
    IO_CMD_PWRITE = 1,
    IO_CMD_FSYNC = 2,
    IO_CMD_FDSYNC = 3,
};

/* A request; io_prep_... fill it in. */
struct iocb {
    void *data = nullptr; /* the caller's; comes back in the event */
    short aio_lio_opcode = IO_CMD_PREAD;
    bool polling = false; /* as in ApiBase; for the waits of io_destroy */
    int aio_fildes = -1;  /* a descriptor of the context's ApiBase */
    void *buf = nullptr;
    std::size_t nbytes = 0;
    long long offset = 0;
};

struct io_event {
    void *data; /* of the iocb */
    iocb *obj;
    long res; /* bytes, 0, or a negative errno */
    long res2; /* 0 */
};

class io_context {
public:
    io_context(ApiBase &api, std::size_t events_max) : api_(api), events_max_(events_max)
    {
        running_.reserve(events_max);
    }

    int submit(iocb &request)
    {
        const File *file = api_.file(request.aio_fildes);
        if (file == nullptr)
            return -EBADF;
        const bool has_offset =
            request.aio_lio_opcode == IO_CMD_PREAD || request.aio_lio_opcode == IO_CMD_PWRITE;
        if (has_offset && request.offset < 0)
            return -EINVAL;
        const auto offset = static_cast<std::uint64_t>(request.offset);
        const std::lock_guard<std::mutex> guard(mutex_);
        if (running_.size() == events_max_)
            return -EAGAIN;
        FutureBase future;
        switch (request.aio_lio_opcode) {
        case IO_CMD_PREAD:
            future = file->pread_async(request.buf, request.nbytes, offset, request.polling);
            break;
        case IO_CMD_PWRITE:
            future = file->pwrite_async(request.buf, request.nbytes, offset, request.polling);
            break;
        case IO_CMD_FSYNC: future = file->fsync_async(request.polling); break;
        case IO_CMD_FDSYNC: future = file->fdatasync_async(request.polling); break;
        default: return -EINVAL;
        }
        running_.push_back(Running{&request, request.data, std::move(future)});
        submitted_.notify_all(); /* each that sleeps may miss a request otherwise */
        return 0;
    }

    /* Fetches `min` to `max` events; fewer after the deadline. */
    long fetch(long min, long max, io_event *events, const detail::Deadline &deadline)
    {
        std::unique_lock<std::mutex> lock(mutex_);
        long fetched = 0;
        for (detail::Backoff backoff(false);;) {
            const long before = fetched;
            fetched += fetch_done(max - fetched, events + fetched);
            if (fetched >= min || deadline.has_passed())
                return fetched;
            if (fetched > before)
                backoff.reset();
            if (running_.empty()) {
                deadline.wait(submitted_, lock);
            } else if (backoff.is_sleepy()) {
                submitted_.wait_for(lock, detail::Backoff::SLEEP);
            } else {
                lock.unlock();
                backoff.pause();
                lock.lock();
            }
        }
    }

    bool is_in_flight(const iocb *request)
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (const Running &running : running_) {
            if (running.request == request)
                return true;
        }
        return false;
    }

private:
    struct Running {
        iocb *request;
        void *data;
        FutureBase future;
    };

    /* The events of requests that are done, oldest first; the others keep their order. */
    long fetch_done(long max, io_event *events)
    {
        long fetched = 0;
        std::size_t kept = 0;
        for (std::size_t at = 0; at < running_.size(); ++at) {
            Running &running = running_[at];
            std::int64_t result = 0;
            if (fetched < max && running.future.poll()) {
                running.future.sink(&result);
                events[fetched++] =
                    io_event{running.data, running.request, static_cast<long>(result), 0};
            } else if (kept++ != at) {
                running_[kept - 1] = std::move(running);
            }
        }
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(kept), running_.end());
        return fetched;
    }

    ApiBase &api_;
    std::size_t events_max_;
    std::mutex mutex_;
    std::condition_variable submitted_;
    std::vector<Running> running_; /* oldest first; never grows beyond events_max_ */
};

using io_context_t = io_context *;

/* -EINVAL unless *context is NULL and maxevents above zero; -ENOMEM. */
inline int io_setup(ApiBase &api, int maxevents, io_context_t *context)
{
    if (context == nullptr || *context != nullptr || maxevents <= 0)
        return -EINVAL;
#ifdef __cpp_exceptions
    try {
        *context = new io_context(api, static_cast<std::size_t>(maxevents));
    } catch (const std::exception &) {
        return -ENOMEM;
    }
#else
    *context = new io_context(api, static_cast<std::size_t>(maxevents));
#endif
    return 0;
}

inline int io_destroy(io_context_t context)
{
    if (context == nullptr)
        return -EINVAL;
    delete context;
    return 0;
}

/* The number submitted, or the error of the first one. */
inline int io_submit(io_context_t context, long nr, iocb *requests[])
{
    if (context == nullptr || nr < 0 || (nr > 0 && requests == nullptr))
        return -EINVAL;
    if (nr > std::numeric_limits<int>::max())
        nr = std::numeric_limits<int>::max();
    for (long i = 0; i < nr; ++i) {
        const int submitted = requests[i] == nullptr ? -EFAULT : context->submit(*requests[i]);
        if (submitted < 0)
            return i == 0 ? submitted : static_cast<int>(i);
    }
    return static_cast<int>(nr);
}

/* Waits for min_nr events, and returns up to nr: their number, less than min_nr after the timeout.
 * A timeout of NULL waits without limit. */
inline int io_getevents(io_context_t context, long min_nr, long nr, io_event *events,
                        const timespec *timeout)
{
    if (context == nullptr || min_nr < 0 || nr < min_nr || (nr > 0 && events == nullptr))
        return -EINVAL;
    if (nr > std::numeric_limits<int>::max())
        return -EINVAL;
    if (timeout == nullptr)
        return static_cast<int>(context->fetch(min_nr, nr, events, detail::Deadline::never()));
    if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1000000000)
        return -EINVAL;
    const std::chrono::duration<double> limit =
        std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
    return static_cast<int>(context->fetch(min_nr, nr, events, detail::Deadline(limit)));
}

/* See above: never succeeds. */
inline int io_cancel(io_context_t context, iocb *request, io_event *)
{
    if (context == nullptr || request == nullptr)
        return -EINVAL;
    return context->is_in_flight(request) ? -EINPROGRESS : -EINVAL;
}

inline void io_prep(iocb *request, io_iocb_cmd command, int descriptor, void *buf,
                    std::size_t count, long long offset)
{
    *request = iocb();
    request->aio_lio_opcode = command;
    request->aio_fildes = descriptor;
    request->buf = buf;
    request->nbytes = count;
    request->offset = offset;
}

inline void io_prep_pread(iocb *request, int descriptor, void *buf, std::size_t count,
                          long long offset)
{
    io_prep(request, IO_CMD_PREAD, descriptor, buf, count, offset);
}

inline void io_prep_pwrite(iocb *request, int descriptor, void *buf, std::size_t count,
                           long long offset)
{
    io_prep(request, IO_CMD_PWRITE, descriptor, buf, count, offset);
}

inline void io_prep_fsync(iocb *request, int descriptor)
{
    io_prep(request, IO_CMD_FSYNC, descriptor, nullptr, 0, 0);
}

inline void io_prep_fdsync(iocb *request, int descriptor)
{
    io_prep(request, IO_CMD_FDSYNC, descriptor, nullptr, 0, 0);
}

} // namespace aio
} // namespace adit

#endif /* ADIT_AIO_HPP */
