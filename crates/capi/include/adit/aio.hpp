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
 *   io_getevents  drives the volume itself while it waits.
 *
 * Threads: any number may submit and fetch at the same time; io_destroy only when no other call on
 * the context is running. An iocb may be reused or freed as soon as io_submit has returned; events
 * give its address back. The data's memory is the operation's until its event was fetched.
 *
 * Invariant: a request has a place from its submission until its event was fetched; the place is
 * the user data of its completion in queue_. places_ and free_ are under mutex_.
 */
#ifndef ADIT_AIO_HPP
#define ADIT_AIO_HPP

#include "api.hpp"
#include "queue.hpp"

#include <algorithm>
#include <ctime>
#include <memory>
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
    io_context(ApiBase &api, std::size_t events_max) : api_(api), places_(events_max)
    {
        free_.reserve(events_max);
        for (Place &place : places_)
            free_.push_back(&place);
    }

    int begin()
    {
        adit_queue_options options = ADIT_QUEUE_OPTIONS_INIT;
        options.entries_max = static_cast<std::uint32_t>(places_.size());
        Result<Queue> queue = api_.volume().queue(options);
        if (!queue)
            return -queue.error_number();
        queue_ = std::move(queue).value();
        return 0;
    }

    int submit(iocb &request)
    {
        const File *file = api_.file(request.aio_fildes);
        if (file == nullptr)
            return -EBADF;
        adit_request submitted{};
        switch (request.aio_lio_opcode) {
        case IO_CMD_PREAD: submitted.operation = ADIT_OP_READ; break;
        case IO_CMD_PWRITE: submitted.operation = ADIT_OP_WRITE; break;
        case IO_CMD_FSYNC: submitted.operation = ADIT_OP_FSYNC; break;
        case IO_CMD_FDSYNC: submitted.operation = ADIT_OP_FDATASYNC; break;
        default: return -EINVAL;
        }
        if (submitted.operation == ADIT_OP_READ || submitted.operation == ADIT_OP_WRITE) {
            if (request.offset < 0)
                return -EINVAL;
            submitted.data = request.buf;
            submitted.len = request.nbytes;
            submitted.offset = static_cast<std::uint64_t>(request.offset);
        }
        submitted.file = file->raw();
        Place *place = nullptr;
        {
            const std::lock_guard<std::mutex> guard(mutex_);
            if (free_.empty())
                return -EAGAIN;
            place = free_.back();
            free_.pop_back();
            *place = Place{&request, request.data};
        }
        submitted.user_data = place;
        const Result<void> done = queue_.submit(submitted);
        if (!done)
            give_back(place);
        return -done.error_number();
    }

    /* Fetches `min` to `max` events; fewer after the deadline. */
    long fetch(long min, long max, io_event *events, const detail::Deadline &deadline)
    {
        constexpr long BATCH = 64;
        adit_completion completions[BATCH];
        long fetched = 0;
        while (fetched < max) {
            const long room = std::min(BATCH, max - fetched);
            const long wanted = std::min(room, std::max(0L, min - fetched));
            const std::int64_t got =
                adit_queue_wait(queue_.raw(), completions, static_cast<std::size_t>(wanted),
                                static_cast<std::size_t>(room), deadline.left_ns());
            if (got < 0)
                return fetched > 0 ? fetched : static_cast<long>(got);
            for (long at = 0; at < got; ++at) {
                auto *place = static_cast<Place *>(completions[at].user_data);
                events[fetched++] = io_event{place->data, place->request,
                                             static_cast<long>(completions[at].result), 0};
                give_back(place);
            }
            if (got < room)
                break;
        }
        return fetched;
    }

    bool is_in_flight(const iocb *request)
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        for (const Place &place : places_) {
            if (place.request == request)
                return true;
        }
        return false;
    }

private:
    struct Place {
        iocb *request = nullptr;
        void *data = nullptr;
    };

    void give_back(Place *place)
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        *place = Place();
        free_.push_back(place);
    }

    ApiBase &api_;
    std::mutex mutex_;
    std::vector<Place> places_;
    std::vector<Place *> free_; /* never grows: it has room for all */
    Queue queue_;               /* first to go: its operations use the places */
};

using io_context_t = io_context *;

/* -EINVAL unless *context is NULL and maxevents above zero; -ENOMEM; -EBADF in a forked child. */
inline int io_setup(ApiBase &api, int maxevents, io_context_t *context)
{
    if (context == nullptr || *context != nullptr || maxevents <= 0)
        return -EINVAL;
    std::unique_ptr<io_context> made;
#ifdef __cpp_exceptions
    try {
        made = std::make_unique<io_context>(api, static_cast<std::size_t>(maxevents));
    } catch (const std::exception &) {
        return -ENOMEM;
    }
#else
    made = std::make_unique<io_context>(api, static_cast<std::size_t>(maxevents));
#endif
    const int begun = made->begin();
    if (begun == 0)
        *context = made.release();
    return begun;
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
