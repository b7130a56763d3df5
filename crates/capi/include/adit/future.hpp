/*
 * Futures: submitted operations of adit.h that are polled or waited for.
 *
 *   none ── submitted ──▶ running ── poll, wait, wait_for, get, destructor ──▶ done
 *                │                                                               ▲
 *                └── the submission failed, or a SyncApi has done it already ────┘
 *
 * Invariants:
 * 1. A running future has an adit_op and keeps the volume open; a done one has neither.
 * 2. The memory of an operation is in use only while its future is running, and a future that is
 *    destroyed or overwritten waits first.
 * 3. A sink gets its result once, at the step to done.
 */
#ifndef ADIT_FUTURE_HPP
#define ADIT_FUTURE_HPP

#include "result.hpp"

#include <chrono>
#include <cstddef>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

namespace adit {
namespace detail {

/* One moment of a processor that spins. */
inline void relax() noexcept
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The pause between two polls of a thread that spins. Every 256 polls it offers its processor to
 * others. */
class Spin {
public:
    void pause() noexcept
    {
        if (++rounds_ % 256 == 0)
            std::this_thread::yield();
        else
            relax();
    }

private:
    unsigned rounds_ = 0;
};

/* When a wait ends; a timeout that is too long for the clock never does. */
class Deadline {
public:
    using Clock = std::chrono::steady_clock;

    template <class Rep, class Period>
    explicit Deadline(std::chrono::duration<Rep, Period> timeout)
    {
        const auto now = Clock::now();
        if (timeout <= timeout.zero()) {
            at_ = now;
            return;
        }
        const std::chrono::duration<double> left = Clock::time_point::max() - now;
        if (std::chrono::duration<double>(timeout) < left)
            at_ = now + std::chrono::duration_cast<Clock::duration>(timeout);
    }

    static Deadline never() { return Deadline(std::chrono::duration<double>::max()); }

    /* The time limit of adit.h from now on: nanoseconds, or -1 for none. */
    std::int64_t left_ns() const
    {
        if (at_ == Clock::time_point::max())
            return -1;
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(at_ - Clock::now());
        return left.count() > 0 ? left.count() : 0;
    }

    bool has_passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }

private:
    Clock::time_point at_ = Clock::time_point::max();
};

} // namespace detail

/* A submitted operation, without the type of its result. Future<T> adds the type.
 *
 * `polling`, chosen at the submission, says how a wait is done: true spins and never sleeps, at the
 * cost of a processor; false lets Adit wait, which spins briefly and then sleeps. */
class FutureBase {
public:
    FutureBase() noexcept = default;

    FutureBase(FutureBase &&other) noexcept { take(other); }

    /* Waits for the operation that is overwritten. */
    FutureBase &operator=(FutureBase &&other) noexcept
    {
        if (this != &other) {
            wait();
            take(other);
        }
        return *this;
    }

    ~FutureBase() { wait(); }

    /* False for a future without an operation: a new one, and one that was moved from. */
    bool valid() const noexcept { return state_ != State::NONE; }

    /* Whether the result is here. Unlike poll(), it only looks. */
    bool done() const noexcept { return state_ != State::RUNNING; }

    /* Whether the result is here, after all progress that is possible without waiting. */
    bool poll() noexcept
    {
        if (done())
            return true;
        std::int64_t result = 0;
        const int polled = adit_op_poll(op_, &result);
        if (polled == 0)
            return false;
        complete(polled < 0 ? polled : result);
        return true;
    }

    void wait() noexcept
    {
        if (polling_) {
            detail::Spin spin;
            while (!poll())
                spin.pause();
        } else if (!done()) {
            complete(adit_op_wait(op_));
        }
    }

    /* Waits at most so long; whether the result is here. The operation goes on after a timeout. */
    template <class Rep, class Period>
    bool wait_for(std::chrono::duration<Rep, Period> timeout)
    {
        const detail::Deadline deadline(timeout);
        detail::Spin spin;
        while (!poll()) {
            if (deadline.has_passed())
                return false;
            if (polling_)
                spin.pause();
            else
                adit_op_wait_any(&op_, 1, nullptr, deadline.left_ns());
        }
        return true;
    }

    /* For adit_op_wait_any; NULL unless the operation is running. */
    adit_op *raw() const noexcept { return done() ? nullptr : op_; }

    /* Waits for the result: bytes, the offset of an append, or 0. May be called again. */
    Result<std::uint64_t> get()
    {
        wait();
        return outcome<std::uint64_t>();
    }

    /* The same, or ETIMEDOUT; then done() is false, and the operation goes on. */
    template <class Rep, class Period>
    Result<std::uint64_t> get(std::chrono::duration<Rep, Period> timeout)
    {
        if (!wait_for(timeout))
            return timed_out();
        return outcome<std::uint64_t>();
    }

    /* The result, a number >= 0 or a negative errno, is stored there when this future gets it: in
     * poll(), a wait or the destructor; at once if it is done. The address must be valid until
     * then. NULL stores nothing. */
    void sink(std::int64_t *address) noexcept
    {
        sink_ = address;
        if (state_ == State::DONE)
            fill_sink();
    }

    bool polling() const noexcept { return polling_; }

    /* Submits by a function of adit.h. If that fails, the future is done with its error. For this
     * interface's own use, and for functions that a later adit.h adds. */
    template <class Submit>
    static FutureBase start(detail::CoreReference core, bool polling, Submit submit)
    {
        FutureBase future;
        future.polling_ = polling;
        future.core_ = std::move(core);
        future.state_ = State::RUNNING;
        const int submitted = submit(&future.op_);
        if (submitted < 0)
            future.complete(submitted);
        return future;
    }

    /* A future that is done, with the result of the function of adit.h that was called last. */
    static FutureBase finished(std::int64_t result) noexcept
    {
        FutureBase future;
        future.complete(result);
        return future;
    }

protected:
    template <class T>
    Result<T> outcome() const
    {
        if (!valid())
            return Fault(EINVAL, "get the result of a future without an operation");
        if (result_ < 0)
            return fault_;
        if constexpr (std::is_void_v<T>)
            return {};
        else
            return static_cast<T>(result_);
    }

    static Fault timed_out() noexcept
    {
        return Fault(ETIMEDOUT, "wait for an operation: it is still running");
    }

private:
    enum class State : unsigned char { NONE, RUNNING, DONE };

    void complete(std::int64_t result) noexcept
    {
        result_ = result;
        if (result < 0)
            fault_ = Fault::of(result);
        state_ = State::DONE;
        adit_op_release(std::exchange(op_, nullptr));
        core_.reset();
        fill_sink();
    }

    void fill_sink() noexcept
    {
        if (std::int64_t *address = std::exchange(sink_, nullptr))
            *address = result_;
    }

    void take(FutureBase &other) noexcept
    {
        op_ = std::exchange(other.op_, nullptr);
        core_ = std::move(other.core_);
        result_ = other.result_;
        fault_ = std::exchange(other.fault_, Fault());
        sink_ = std::exchange(other.sink_, nullptr);
        polling_ = other.polling_;
        state_ = std::exchange(other.state_, State::NONE);
    }

    adit_op *op_ = nullptr;
    detail::CoreReference core_;
    std::int64_t result_ = 0;
    Fault fault_;
    std::int64_t *sink_ = nullptr;
    bool polling_ = false;
    State state_ = State::NONE;
};

/* A submitted operation with a result of type T: std::size_t bytes, std::uint64_t the offset of an
 * append, void. In C++20 it can be awaited: see coroutine.hpp. */
template <class T>
class [[nodiscard]] Future : public FutureBase {
public:
    Future() noexcept = default;
    explicit Future(FutureBase &&base) noexcept : FutureBase(std::move(base)) {}

    /* As in FutureBase. */
    Result<T> get()
    {
        wait();
        return outcome<T>();
    }

    template <class Rep, class Period>
    Result<T> get(std::chrono::duration<Rep, Period> timeout)
    {
        if (!wait_for(timeout))
            return timed_out();
        return outcome<T>();
    }
};

namespace detail {

inline FutureBase *future_at(FutureBase &future) noexcept { return &future; }

template <class Pointer>
auto future_at(const Pointer &pointer) noexcept -> decltype(&*pointer)
{
    return pointer == nullptr ? nullptr : &*pointer;
}

template <class Iterator>
Iterator wait_any_until(Iterator first, Iterator last, const Deadline &deadline)
{
    std::vector<adit_op *> ops;
    std::vector<Iterator> places;
    for (Iterator at = first; at != last; ++at) {
        FutureBase *future = future_at(*at);
        if (future == nullptr || !future->valid())
            continue;
        if (future->done())
            return at;
        ops.push_back(future->raw());
        places.push_back(at);
    }
    if (ops.empty())
        return last;
    std::vector<std::uint8_t> done(ops.size());
    for (;;) {
        const std::int64_t count =
            adit_op_wait_any(ops.data(), ops.size(), done.data(), deadline.left_ns());
        for (std::size_t at = 0; at < ops.size(); ++at) {
            /* After an error of the wait itself, each future gets its own. */
            if ((count < 0 || done[at] != 0) && future_at(*places[at])->poll())
                return places[at];
        }
        if (deadline.has_passed())
            return last;
    }
}

} // namespace detail

/* Waits until one of the futures is done, and returns its place: the first in the range, so remove
 * those that were seen. The range is of futures or of (smart) pointers to them; null and invalid
 * ones are passed over. `last` if none is valid, or after the timeout. */
template <class Iterator>
Iterator wait_any(Iterator first, Iterator last)
{
    return detail::wait_any_until(first, last, detail::Deadline::never());
}

template <class Iterator, class Rep, class Period>
Iterator wait_any(Iterator first, Iterator last, std::chrono::duration<Rep, Period> timeout)
{
    return detail::wait_any_until(first, last, detail::Deadline(timeout));
}

/* A fixed number of futures: a bound on the operations in flight. Any thread may take and return.
 * Futures may be returned after the pool is gone. */
class FuturePool {
    struct Slots {
        explicit Slots(std::size_t capacity) : futures(capacity)
        {
            free.reserve(capacity);
            for (FutureBase &future : futures)
                free.push_back(&future);
        }

        std::mutex mutex;
        std::vector<FutureBase> futures;
        std::vector<FutureBase *> free; /* never grows: it has room for all */
    };

    struct Return {
        std::shared_ptr<Slots> slots;

        void operator()(FutureBase *future) const noexcept
        {
            *future = FutureBase(); /* waits */
            const std::lock_guard<std::mutex> guard(slots->mutex);
            slots->free.push_back(future);
        }
    };

public:
    /* A future of the pool. Its destructor waits for the operation and returns the future. */
    using Pointer = std::unique_ptr<FutureBase, Return>;

    explicit FuturePool(std::size_t capacity)
        : slots_(std::make_shared<Slots>(capacity))
    {
    }

    FuturePool(FuturePool &&) = delete;

    std::size_t capacity() const noexcept { return slots_->futures.size(); }

    std::size_t in_use() const
    {
        const std::lock_guard<std::mutex> guard(slots_->mutex);
        return slots_->futures.size() - slots_->free.size();
    }

    /* A future without an operation. EAGAIN while all are in use. */
    Result<Pointer> take()
    {
        FutureBase *future = nullptr;
        {
            const std::lock_guard<std::mutex> guard(slots_->mutex);
            if (slots_->free.empty())
                return Fault(EAGAIN, "take a future: all of the pool are in use; drop one first");
            future = slots_->free.back();
            slots_->free.pop_back();
        }
        return Pointer(future, Return{slots_});
    }

private:
    std::shared_ptr<Slots> slots_;
};

using FuturePointer = FuturePool::Pointer;

} // namespace adit

#endif /* ADIT_FUTURE_HPP */
