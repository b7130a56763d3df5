/*
 * A completion queue: any thread waits for any of the operations that were submitted to it. Each
 * function is the one of adit.h with that name: what it does, its errors and its limits are
 * described there.
 */
#ifndef ADIT_QUEUE_HPP
#define ADIT_QUEUE_HPP

#include "file.hpp"
#include "future.hpp"
#include "result.hpp"

namespace adit {

class Queue {
public:
    Queue() noexcept = default;
    Queue(adit_queue *raw, detail::CoreReference core) noexcept : owned_(raw, std::move(core)) {}

    adit_queue *raw() const noexcept { return owned_.raw(); }

    /* The number submitted, or the error of the first one. */
    Result<std::size_t> submit(const adit_request *requests, std::size_t count) const
    {
        return number(adit_queue_submit(raw(), requests, count));
    }

    Result<void> submit(const adit_request &request) const
    {
        const std::int64_t submitted = adit_queue_submit(raw(), &request, 1);
        if (submitted < 0)
            return Fault::of(submitted);
        return {};
    }

    /* Requests to fill in further, or to submit as they are. */
    static adit_request read(const File &file, void *data, std::size_t len, std::uint64_t offset,
                             void *user_data, adit_done done = nullptr) noexcept
    {
        return request(ADIT_OP_READ, file, data, len, offset, user_data, done);
    }

    static adit_request write(const File &file, const void *data, std::size_t len,
                              std::uint64_t offset, void *user_data,
                              adit_done done = nullptr) noexcept
    {
        return request(ADIT_OP_WRITE, file, const_cast<void *>(data), len, offset, user_data, done);
    }

    static adit_request append(const File &file, const void *data, std::size_t len,
                               void *user_data, adit_done done = nullptr) noexcept
    {
        return request(ADIT_OP_APPEND, file, const_cast<void *>(data), len, 0, user_data, done);
    }

    static adit_request fsync(const File &file, void *user_data,
                              adit_done done = nullptr) noexcept
    {
        return request(ADIT_OP_FSYNC, file, nullptr, 0, 0, user_data, done);
    }

    static adit_request fdatasync(const File &file, void *user_data,
                                  adit_done done = nullptr) noexcept
    {
        return request(ADIT_OP_FDATASYNC, file, nullptr, 0, 0, user_data, done);
    }

    /* Takes min to max completions; fewer after the timeout. */
    Result<std::size_t> wait(adit_completion *completions, std::size_t min, std::size_t max) const
    {
        return number(adit_queue_wait(raw(), completions, min, max, -1));
    }

    template <class Rep, class Period>
    Result<std::size_t> wait(adit_completion *completions, std::size_t min, std::size_t max,
                             std::chrono::duration<Rep, Period> timeout) const
    {
        const std::int64_t limit = detail::Deadline(timeout).left_ns();
        return number(adit_queue_wait(raw(), completions, min, max, limit));
    }

    /* The same, and calls the callbacks in this thread. One that throws loses the others of its
     * batch, and must not: they are called by the library. */
    Result<std::size_t> run(std::size_t min, std::size_t max) const
    {
        return number(adit_queue_run(raw(), min, max, -1));
    }

    template <class Rep, class Period>
    Result<std::size_t> run(std::size_t min, std::size_t max,
                            std::chrono::duration<Rep, Period> timeout) const
    {
        return number(adit_queue_run(raw(), min, max, detail::Deadline(timeout).left_ns()));
    }

    Result<void> post(void *user_data, std::int64_t result = 0, adit_done done = nullptr) const
    {
        return detail::to_result<void>(adit_queue_post(raw(), done, user_data, result));
    }

    Result<std::size_t> pending() const { return number(adit_queue_pending(raw())); }

    /* For poll and epoll; the queue's own. */
    Result<int> eventfd() const { return detail::to_result<int>(adit_queue_eventfd(raw())); }

    /* Waits for the operations in flight, as the destructor does. */
    Result<void> close() { return owned_.close(); }

private:
    static adit_request request(std::uint32_t operation, const File &file, void *data,
                                std::size_t len, std::uint64_t offset, void *user_data,
                                adit_done done) noexcept
    {
        adit_request request{};
        request.operation = operation;
        request.file = file.raw();
        request.data = data;
        request.len = len;
        request.offset = offset;
        request.user_data = user_data;
        request.done = done;
        return request;
    }

    static Result<std::size_t> number(std::int64_t result)
    {
        return detail::to_result<std::size_t>(result);
    }

    detail::Owned<adit_queue, adit_queue_destroy> owned_;
};

} // namespace adit

#endif /* ADIT_QUEUE_HPP */
