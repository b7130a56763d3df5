/*
 * co_await on futures, in C++20: a Loop runs Tasks in the calling thread, and waits for any of the
 * futures that they await. Without compiler support for coroutines this header is empty.
 *
 *   adit::Task<void> copy(adit::File &from, adit::File &to) {
 *       char page[4096];
 *       const std::size_t got = (co_await from.pread_async(page, sizeof(page), 0)).value();
 *       (co_await to.pwrite_async(page, got, 0)).value();
 *   }
 *   adit::Loop loop;
 *   loop.run(copy(from, to));
 *
 * A Task is lazy: it begins when it is awaited, or run by a loop. An exception leaves it at that
 * place. A Task that is destroyed while it awaits a future waits for the operation first, as every
 * future does.
 *
 * Threads: a loop, its tasks and their futures belong to the thread that runs the loop.
 *
 * Invariant: a suspended coroutine that awaits a future is in exactly one list of its loop:
 * waiting_, or while a round hands out results, ready_. Its node lies in its frame, so awaiting
 * allocates nothing.
 */
#ifndef ADIT_COROUTINE_HPP
#define ADIT_COROUTINE_HPP

#include "future.hpp"

#if defined(__cpp_impl_coroutine)

#include <coroutine>
#include <exception>
#include <stdexcept>
#include <variant>

namespace adit {

class Loop;

namespace detail {

/* A member of a circular list; alone, it is a list of its own. */
struct Node {
    Node *before = this;
    Node *after = this;

    Node() noexcept = default;
    Node(const Node &) = delete;
    Node &operator=(const Node &) = delete;
    ~Node() { unlink(); }

    void unlink() noexcept
    {
        before->after = after;
        after->before = before;
        before = after = this;
    }

    void move_to_end_of(Node &list) noexcept
    {
        unlink();
        before = list.before;
        after = &list;
        before->after = this;
        list.before = this;
    }
};

struct Waiting : Node {
    FutureBase *future = nullptr;
    std::coroutine_handle<> coroutine;
};

inline Loop *&current_loop() noexcept
{
    static thread_local Loop *current = nullptr;
    return current;
}

inline void require(bool holds, const char *text)
{
    if (holds)
        return;
#ifdef __cpp_exceptions
    throw std::logic_error(text);
#else
    std::fprintf(stderr, "adit: %s\n", text);
    std::abort();
#endif
}

/* The result of a task: nothing yet, a value, or an exception. */
template <class T>
class Answer {
public:
    void return_value(T value) { answer_.template emplace<1>(std::move(value)); }
    void unhandled_exception() { answer_.template emplace<2>(std::current_exception()); }

    T take()
    {
        if (answer_.index() == 2)
            std::rethrow_exception(std::get<2>(std::move(answer_)));
        return std::get<1>(std::move(answer_));
    }

private:
    std::variant<std::monostate, T, std::exception_ptr> answer_;
};

template <>
class Answer<void> {
public:
    void return_void() noexcept {}
    void unhandled_exception() { exception_ = std::current_exception(); }

    void take()
    {
        if (exception_)
            std::rethrow_exception(std::exchange(exception_, nullptr));
    }

private:
    std::exception_ptr exception_;
};

} // namespace detail

/* A coroutine with a result of type T. */
template <class T>
class [[nodiscard]] Task {
public:
    struct promise_type : detail::Answer<T> {
        std::coroutine_handle<> continuation = std::noop_coroutine();

        Task get_return_object() noexcept { return Task(Handle::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }

        struct Final {
            bool await_ready() noexcept { return false; }
            std::coroutine_handle<>
            await_suspend(std::coroutine_handle<promise_type> done) noexcept
            {
                return done.promise().continuation;
            }
            void await_resume() noexcept {}
        };

        Final final_suspend() noexcept { return {}; }
    };

    using Handle = std::coroutine_handle<promise_type>;

    Task(Task &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

    Task &operator=(Task &&other) noexcept
    {
        if (this != &other) {
            destroy();
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }

    ~Task() { destroy(); }

    /* Begins it, and continues when it is done. Once. */
    auto operator co_await() &&
    {
        struct Awaiter {
            Handle handle;

            bool await_ready() noexcept { return false; }
            std::coroutine_handle<> await_suspend(std::coroutine_handle<> awaiting) noexcept
            {
                handle.promise().continuation = awaiting;
                return handle;
            }
            T await_resume() { return handle.promise().take(); }
        };
        detail::require(handle_ && !handle_.done(), "co_await a task twice, or after a move");
        return Awaiter{handle_};
    }

private:
    friend class Loop;

    explicit Task(Handle handle) noexcept : handle_(handle) {}

    void destroy() noexcept
    {
        if (handle_)
            std::exchange(handle_, nullptr).destroy();
    }

    Handle handle_;
};

/* Runs tasks and waits for the futures that they await. */
class Loop {
public:
    /* polling: spin while nothing is ready, rather than sleep. */
    explicit Loop(bool polling = false) noexcept : polling_(polling) {}

    Loop(const Loop &) = delete;
    Loop &operator=(const Loop &) = delete;

    /* Begins the task at once, as far as its first wait. run() and run_all() continue it; run_all()
     * also drops it when it is done. */
    void spawn(Task<void> task)
    {
        const Task<void>::Handle handle = task.handle_;
        detail::require(handle && !handle.done(), "spawn a task twice, or after a move");
        tasks_.push_back(std::move(task));
        const Entered entered(*this);
        handle.resume();
    }

    /* Runs the task to its end, and spawned ones meanwhile; its result or exception. */
    template <class T>
    T run(Task<T> task)
    {
        detail::require(task.handle_ && !task.handle_.done(), "run a task twice, or after a move");
        {
            const Entered entered(*this);
            task.handle_.resume();
        }
        until([&] { return task.handle_.done(); });
        return task.handle_.promise().take();
    }

    /* Runs all spawned tasks to their ends; then throws the exception of the first that has one. */
    void run_all()
    {
        until([&] {
            for (const Task<void> &task : tasks_) {
                if (!task.handle_.done())
                    return false;
            }
            return true;
        });
        std::vector<Task<void>> done = std::move(tasks_);
        tasks_.clear();
        for (Task<void> &task : done)
            task.handle_.promise().take();
    }

    /* The loop that runs this thread's coroutine; NULL outside of one. */
    static Loop *current() noexcept { return detail::current_loop(); }

    void wait_for(detail::Waiting &waiting) noexcept { waiting.move_to_end_of(waiting_); }

private:
    struct Entered {
        explicit Entered(Loop &loop) noexcept
            : before(std::exchange(detail::current_loop(), &loop))
        {
        }
        Entered(const Entered &) = delete;
        ~Entered() { detail::current_loop() = before; }

        Loop *before;
    };

    template <class Condition>
    void until(Condition holds)
    {
        const Entered entered(*this);
        for (detail::Spin spin; !holds();) {
            if (!round())
                spin.pause();
        }
    }

    /* Waits, or with polling_ polls, then resumes those whose futures are done. */
    bool round()
    {
        detail::require(waiting_.after != &waiting_,
                        "a task of this loop awaits something that is not a future of Adit");
        ops_.clear();
        for (detail::Node *at = waiting_.after; at != &waiting_; at = at->after)
            ops_.push_back(static_cast<detail::Waiting *>(at)->future->raw());
        done_.assign(ops_.size(), 0);
        const std::int64_t count =
            adit_op_wait_any(ops_.data(), ops_.size(), done_.data(), polling_ ? 0 : -1);
        std::size_t number = 0;
        for (detail::Node *at = waiting_.after; at != &waiting_; ++number) {
            auto *waiting = static_cast<detail::Waiting *>(at);
            at = at->after;
            /* One without an operation is done. After an error of the wait, each gets its own. */
            const bool looks = count < 0 || done_[number] != 0 || ops_[number] == nullptr;
            if (looks && waiting->future->poll())
                waiting->move_to_end_of(ready_);
        }
        const bool any = ready_.after != &ready_;
        /* A coroutine that runs may add nodes, and remove any by destroying tasks. */
        while (ready_.after != &ready_) {
            auto *waiting = static_cast<detail::Waiting *>(ready_.after);
            waiting->unlink();
            waiting->coroutine.resume();
        }
        return any;
    }

    bool polling_;
    detail::Node waiting_;
    detail::Node ready_;
    std::vector<adit_op *> ops_; /* of a round, and which of them are done */
    std::vector<std::uint8_t> done_;
    std::vector<Task<void>> tasks_; /* last: their frames hold nodes of the lists */
};

/* `co_await future` is the Result that its get() would return. std::logic_error if the coroutine is
 * not run by a Loop and the future is still running. */
template <class Future>
class FutureAwaiter {
public:
    explicit FutureAwaiter(Future &future) noexcept : future_(future) {}

    bool await_ready() noexcept { return future_.poll(); }

    void await_suspend(std::coroutine_handle<> coroutine)
    {
        Loop *loop = Loop::current();
        detail::require(loop != nullptr, "co_await a future outside of an adit::Loop");
        waiting_.future = &future_;
        waiting_.coroutine = coroutine;
        loop->wait_for(waiting_);
    }

    auto await_resume() { return future_.get(); }

private:
    Future &future_;
    detail::Waiting waiting_;
};

template <class T>
FutureAwaiter<Future<T>> operator co_await(Future<T> &future) noexcept
{
    return FutureAwaiter<Future<T>>(future);
}

template <class T>
FutureAwaiter<Future<T>> operator co_await(Future<T> &&future) noexcept
{
    return FutureAwaiter<Future<T>>(future);
}

inline FutureAwaiter<FutureBase> operator co_await(FutureBase &future) noexcept
{
    return FutureAwaiter<FutureBase>(future);
}

} // namespace adit

#endif /* __cpp_impl_coroutine */

#endif /* ADIT_COROUTINE_HPP */
