/*
 * Futures, pools, wait_any and adit::aio over a library whose operations end when the test says so:
 * the real one ends them too soon to see a timeout, a drop in flight, or which wait was chosen.
 *
 * Not linked with libadit. Prints "N claims hold".
 */
#include "adit.hpp"
#include "claims.hpp"

#include <cstring>
#include <list>
#include <mutex>
#include <thread>

/* ----------------------------------------------------------------------- the library's stand-in */

struct adit_op {
    int polls_left; /* done after so many polls more; below zero, never by polls */
    std::int64_t result;
    char *fills; /* gets one byte when the operation ends, as a read would */
    bool released;
};

static constexpr int NEVER = -1;

static struct {
    int polls_left = NEVER; /* of the next operation */
    std::int64_t result = 0;
    int submit_error = 0;
    std::list<adit_op> ops; /* all that there were */
    std::atomic<int> polls{0}, waits{0}, any_waits{0}, releases{0}, closed_volumes{0}, closed_files{0};
} library;

static void next_operation(int polls_left, std::int64_t result, int submit_error = 0)
{
    library.polls_left = polls_left;
    library.result = result;
    library.submit_error = submit_error;
}

static void end(adit_op *op)
{
    op->polls_left = 0;
    if (op->fills != nullptr)
        *op->fills = 'x';
}

static int submit(void *data, adit_op **op)
{
    if (library.submit_error != 0)
        return library.submit_error;
    auto *fills = static_cast<char *>(data);
    library.ops.push_back(adit_op{library.polls_left, library.result, fills, false});
    *op = &library.ops.back();
    return 0;
}

extern "C" {
const char *adit_error_message(void) { return "the stand-in's text"; }

int adit_op_poll(adit_op *op, int64_t *result)
{
    ++library.polls;
    HOLDS(op != nullptr && !op->released);
    if (op->polls_left != 0) {
        if (op->polls_left > 0)
            --op->polls_left;
        return 0;
    }
    end(op);
    *result = op->result;
    return 1;
}

int64_t adit_op_wait(adit_op *op)
{
    ++library.waits;
    HOLDS(op != nullptr && !op->released);
    end(op);
    return op->result;
}

int64_t adit_op_wait_any(adit_op *const *ops, size_t count, uint8_t *done, int64_t timeout_ns)
{
    ++library.any_waits;
    const auto deadline = timeout_ns < 0 ? std::chrono::steady_clock::time_point::max()
                                         : std::chrono::steady_clock::now() +
                                               std::chrono::nanoseconds(timeout_ns);
    for (;;) {
        int64_t sum = 0;
        for (size_t at = 0; at < count; ++at) {
            adit_op *op = ops[at];
            HOLDS(op == nullptr || !op->released);
            const bool is_done = op != nullptr && op->polls_left == 0;
            if (op != nullptr && op->polls_left > 0)
                --op->polls_left;
            if (done != nullptr)
                done[at] = is_done ? 1 : 0;
            sum += is_done ? 1 : 0;
        }
        if (sum > 0 || std::chrono::steady_clock::now() >= deadline)
            return sum;
        std::this_thread::yield();
    }
}

/* A queue takes completions in the order of their submission, and of posts. */
struct adit_queue {
    std::mutex mutex;
    std::list<std::pair<adit_op *, void *>> running;
};

int adit_queue_create(adit_volume *, const adit_queue_options *, adit_queue **queue)
{
    *queue = new adit_queue;
    return 0;
}

int64_t adit_queue_submit(adit_queue *queue, const adit_request *requests, size_t count)
{
    HOLDS(count == 1);
    adit_op *op = nullptr;
    const std::lock_guard<std::mutex> guard(queue->mutex);
    const int submitted = submit(requests->operation == ADIT_OP_READ ? requests->data : nullptr, &op);
    if (submitted < 0)
        return submitted;
    queue->running.emplace_back(op, requests->user_data);
    return 1;
}

int64_t adit_queue_wait(adit_queue *queue, adit_completion *completions, size_t min, size_t max,
                        int64_t timeout_ns)
{
    const auto deadline = timeout_ns < 0 ? std::chrono::steady_clock::time_point::max()
                                         : std::chrono::steady_clock::now() +
                                               std::chrono::nanoseconds(timeout_ns);
    for (size_t taken = 0;;) {
        {
            const std::lock_guard<std::mutex> guard(queue->mutex);
            for (auto at = queue->running.begin(); at != queue->running.end() && taken < max;) {
                adit_op *op = at->first;
                if (op->polls_left != 0) {
                    op->polls_left -= op->polls_left > 0 ? 1 : 0;
                    ++at;
                    continue;
                }
                end(op);
                op->released = true;
                completions[taken++] = adit_completion{at->second, op->result, nullptr, 0};
                at = queue->running.erase(at);
            }
        }
        if (taken >= min || std::chrono::steady_clock::now() >= deadline)
            return static_cast<int64_t>(taken);
        std::this_thread::yield();
    }
}

int adit_queue_destroy(adit_queue *queue)
{
    for (const auto &running : queue->running) {
        end(running.first);
        running.first->released = true;
    }
    delete queue;
    return 0;
}

void adit_op_release(adit_op *op)
{
    if (op == nullptr)
        return;
    ++library.releases;
    HOLDS(!op->released);
    op->released = true;
}

int adit_pread_submit(adit_file *, void *data, size_t, uint64_t, adit_done, void *, adit_op **op)
{
    return submit(data, op);
}

int adit_pwrite_submit(adit_file *, const void *, size_t, uint64_t, adit_done, void *, adit_op **op)
{
    return submit(nullptr, op);
}

int adit_fsync_submit(adit_file *, adit_done, void *, adit_op **op) { return submit(nullptr, op); }

int adit_fdatasync_submit(adit_file *, adit_done, void *, adit_op **op)
{
    return submit(nullptr, op);
}

int adit_open_volume(const char *, const adit_open_options *, adit_volume **volume)
{
    *volume = reinterpret_cast<adit_volume *>(&library);
    return 0;
}

int adit_close_volume(adit_volume *)
{
    ++library.closed_volumes;
    return 0;
}

int adit_open(adit_volume *, const char *, unsigned, unsigned, adit_file **file)
{
    *file = reinterpret_cast<adit_file *>(&library);
    return 0;
}

int adit_close(adit_file *)
{
    ++library.closed_files;
    return 0;
}
}

/* -------------------------------------------------------------------------------------- futures */

using namespace std::chrono_literals;

static adit::File a_file()
{
    return adit::Volume::open("any").value().open_file("/any", ADIT_O_RDWR).value();
}

static void a_poll_is_one_look()
{
    const adit::File file = a_file();
    char byte = 0;
    next_operation(2, 7);
    auto read = file.pread_async(&byte, 1, 0);
    const int polls = library.polls;
    HOLDS(read.valid() && !read.done() && !read.poll() && !read.poll() && !read.done());
    HOLDS(read.poll() && read.done() && read.poll());
    HOLDS(library.polls == polls + 3);
    HOLDS(read.get().value() == 7 && read.get().value() == 7);
    HOLDS(library.waits == 0 && byte == 'x');
}

static void polling_chooses_how_a_wait_is_done()
{
    const adit::File file = a_file();
    const int waits = library.waits;
    next_operation(1000, 0);
    auto spins = file.fsync_async(true);
    HOLDS(spins.polling());
    const int polls = library.polls;
    OK(spins.get());
    HOLDS(library.waits == waits && library.polls == polls + 1001);
    next_operation(NEVER, 0);
    auto blocks = file.fdatasync_async();
    HOLDS(!blocks.polling());
    OK(blocks.get());
    HOLDS(library.waits == waits + 1 && library.polls == polls + 1001);
}

static void a_timeout_leaves_the_operation_running()
{
    const adit::File file = a_file();
    char byte = 0;
    for (const bool polling : {false, true}) {
        next_operation(NEVER, 1);
        auto read = file.pread_async(&byte, 1, 0, polling);
        const auto begun = std::chrono::steady_clock::now();
        HOLDS(!read.wait_for(20ms));
        HOLDS(std::chrono::steady_clock::now() - begun >= 20ms);
        HOLDS(!read.wait_for(0s) && !read.wait_for(-1h));
        FAILS(ETIMEDOUT, read.get(1ms));
        FAILS(ETIMEDOUT, static_cast<adit::FutureBase &>(read).get(1ms));
        HOLDS(!read.done());
        library.ops.back().polls_left = 5;
        HOLDS(read.wait_for(std::chrono::hours::max()));
        HOLDS(read.get(0s).value() == 1);
    }
}

static void a_long_wait_is_one_call()
{
    const adit::File file = a_file();
    next_operation(NEVER, 0);
    auto sync = file.fsync_async();
    // A thread that is late by all of the time calls none: the next one does.
    int calls = 0;
    for (int round = 0; round < 100 && calls == 0; round++) {
        const int polls = library.polls, waits = library.any_waits;
        HOLDS(!sync.wait_for(100ms));
        calls = library.any_waits - waits;
        HOLDS(library.polls - polls <= 2);
    }
    HOLDS(calls == 1);
}

static void a_future_that_is_dropped_in_flight_waits()
{
    const adit::File file = a_file();
    char byte = 0;
    const int releases = library.releases;
    {
        next_operation(NEVER, 1);
        const auto dropped = file.pread_async(&byte, 1, 0);
    }
    HOLDS(byte == 'x' && library.releases == releases + 1);
    byte = 0;
    char other = 0;
    next_operation(NEVER, 1);
    auto overwritten = file.pread_async(&byte, 1, 0);
    next_operation(NEVER, 2);
    overwritten = file.pread_async(&other, 1, 0);
    HOLDS(byte == 'x' && other == 0);
    HOLDS(overwritten.get().value() == 2);
    auto &itself = overwritten;
    overwritten = std::move(itself);
    HOLDS(overwritten.get().value() == 2 && library.releases == releases + 3);
}

static void a_move_takes_all_along()
{
    const adit::File file = a_file();
    std::int64_t sunk = -1;
    next_operation(NEVER, 9);
    auto first = file.fsync_async(false);
    first.sink(&sunk);
    auto second = std::move(first);
    HOLDS(!first.valid() && first.done() && second.valid() && !second.done());
    FAILS(EINVAL, first.get());
    HOLDS(first.poll() && first.wait_for(0s) && sunk == -1);
    OK(second.get());
    HOLDS(sunk == 9);
    adit::FutureBase none;
    HOLDS(!none.valid() && none.poll());
    FAILS(EINVAL, none.get());
    static_assert(!std::is_copy_constructible_v<adit::FutureBase>, "");
    static_assert(!std::is_copy_assignable_v<adit::Future<void>>, "");
    static_assert(std::is_nothrow_move_constructible_v<adit::Future<void>>, "");
}

static void a_sink_gets_the_result_once()
{
    const adit::File file = a_file();
    std::int64_t polled = -1, dropped = -1, failed = 1, late = -1, refused = -1;
    next_operation(1, 3);
    auto first = file.fsync_async();
    first.sink(&polled);
    HOLDS(!first.poll() && polled == -1 && first.poll() && polled == 3);
    polled = -1;
    OK(first.get());
    HOLDS(polled == -1);
    first.sink(&late);
    HOLDS(late == 3);
    {
        next_operation(NEVER, 4);
        auto second = file.fsync_async();
        second.sink(&dropped);
    }
    HOLDS(dropped == 4);
    next_operation(0, -EIO);
    auto third = file.fsync_async();
    third.sink(&failed);
    FAILS(EIO, third.get());
    HOLDS(failed == -EIO && third.get().message() == "the stand-in's text");
    next_operation(0, 0, -ENOMEM);
    auto fourth = file.fsync_async();
    fourth.sink(&refused);
    HOLDS(fourth.done() && refused == -ENOMEM);
    FAILS(ENOMEM, fourth.get());
}

static void a_running_future_keeps_the_volume_open()
{
    const int volumes = library.closed_volumes, files = library.closed_files;
    next_operation(NEVER, 0);
    auto sync = a_file().fsync_async();
    HOLDS(library.closed_files == files + 1 && library.closed_volumes == volumes);
    OK(sync.get());
    HOLDS(library.closed_volumes == volumes + 1);
}

static void one_of_several_is_waited_for()
{
    const adit::File file = a_file();
    std::vector<adit::Future<void>> futures;
    HOLDS(adit::wait_any(futures.begin(), futures.end()) == futures.end());
    for (const int polls_left : {NEVER, 500, NEVER}) {
        next_operation(polls_left, 0);
        futures.push_back(file.fsync_async());
    }
    HOLDS(adit::wait_any(futures.begin(), futures.end()) == futures.begin() + 1);
    futures.erase(futures.begin() + 1);
    const auto begun = std::chrono::steady_clock::now();
    HOLDS(adit::wait_any(futures.begin(), futures.end(), 10ms) == futures.end());
    HOLDS(std::chrono::steady_clock::now() - begun >= 10ms);
    /* Pointers, too; null and invalid ones are passed over. */
    adit::FutureBase invalid;
    std::vector<adit::FutureBase *> pointers = {nullptr, &invalid};
    HOLDS(adit::wait_any(pointers.begin(), pointers.end()) == pointers.end());
    pointers.push_back(&futures[1]);
    library.ops.back().polls_left = 3;
    HOLDS(adit::wait_any(pointers.begin(), pointers.end()) == pointers.begin() + 2);
}

static void a_pool_is_bounded_and_takes_back()
{
    const adit::File file = a_file();
    char byte = 0;
    adit::FuturePointer survivor;
    {
        adit::FuturePool pool(2);
        HOLDS(pool.capacity() == 2 && pool.in_use() == 0);
        auto first = pool.take().value();
        auto second = pool.take().value();
        HOLDS(first.get() != second.get() && !first->valid() && pool.in_use() == 2);
        FAILS(EAGAIN, pool.take());
        next_operation(NEVER, 1);
        *first = file.pread_async(&byte, 1, 0);
        const int waits = library.waits;
        first.reset();
        HOLDS(library.waits == waits + 1 && byte == 'x' && pool.in_use() == 1);
        auto third = pool.take();
        HOLDS(third && !third.value()->valid());
        survivor = std::move(third).value();
        next_operation(NEVER, 5);
        *survivor = file.fsync_async();
    }
    HOLDS(survivor->get().value() == 5);
    survivor.reset();
    adit::FuturePool none(0);
    FAILS(EAGAIN, none.take());

    adit::FuturePool shared(3);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int taken = 0; taken < 1000;) {
                auto future = shared.take();
                HOLDS(future || future.error_number() == EAGAIN);
                taken += future ? 1 : 0;
                std::this_thread::yield();
            }
        });
    }
    for (std::thread &thread : threads)
        thread.join();
    HOLDS(shared.in_use() == 0);
}

/* ------------------------------------------------------------------------------------------ aio */

static timespec milliseconds(long count) { return timespec{count / 1000, count % 1000 * 1000000}; }

static void requests_in_flight_are_not_cancelled()
{
    using namespace adit::aio;
    const adit::Volume volume = adit::Volume::open("any").value();
    adit::AsyncApi api(volume);
    const int descriptor = api.open("/any", O_RDWR).value();
    io_context_t context = nullptr;
    HOLDS(io_setup(api, 2, &context) == 0 && context != nullptr);
    char bytes[3] = {};
    iocb requests[3];
    iocb *pointers[3];
    for (int i = 0; i < 3; ++i) {
        io_prep_pread(&requests[i], descriptor, &bytes[i], 1, i);
        requests[i].data = &bytes[i];
        pointers[i] = &requests[i];
    }
    next_operation(NEVER, 1);
    HOLDS(io_submit(context, 3, pointers) == 2);
    HOLDS(io_submit(context, 1, &pointers[2]) == -EAGAIN);
    io_event event{};
    HOLDS(io_cancel(context, &requests[1], &event) == -EINPROGRESS);
    HOLDS(io_cancel(context, &requests[2], &event) == -EINVAL);

    io_event events[4];
    const timespec soon = milliseconds(10), at_once = milliseconds(0);
    const auto begun = std::chrono::steady_clock::now();
    HOLDS(io_getevents(context, 1, 4, events, &soon) == 0);
    HOLDS(std::chrono::steady_clock::now() - begun >= 10ms);
    library.ops.back().polls_left = 1;
    const timespec later = milliseconds(300); // for a thread that is late
    HOLDS(io_getevents(context, 2, 4, events, &later) == 1);
    HOLDS(events[0].obj == &requests[1] && events[0].data == &bytes[1] && events[0].res == 1);
    HOLDS(io_cancel(context, &requests[1], &event) == -EINVAL);
    HOLDS(io_getevents(context, 0, 4, events, &at_once) == 0);

    /* Room for one again; a later one may overtake. */
    next_operation(0, -EIO);
    HOLDS(io_submit(context, 1, &pointers[2]) == 1);
    HOLDS(io_getevents(context, 1, 1, events, nullptr) == 1);
    HOLDS(events[0].obj == &requests[2] && events[0].res == -EIO);

    HOLDS(bytes[0] == 0);
    HOLDS(io_destroy(context) == 0);
    HOLDS(bytes[0] == 'x'); /* it waited for the first */
}

static void a_thread_that_fetches_hears_of_a_submission()
{
    using namespace adit::aio;
    const adit::Volume volume = adit::Volume::open("any").value();
    adit::AsyncApi api(volume);
    const int descriptor = api.open("/any", O_RDWR).value();
    io_context_t context = nullptr;
    HOLDS(io_setup(api, 4, &context) == 0);
    const timespec long_enough = milliseconds(60000);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
            io_event event{};
            HOLDS(io_getevents(context, 1, 1, &event, i == 0 ? nullptr : &long_enough) == 1);
        });
    }
    iocb request;
    io_prep_fdsync(&request, descriptor);
    iocb *pointer = &request;
    next_operation(2, 0);
    for (int i = 0; i < 2; ++i) {
        std::this_thread::sleep_for(5ms);
        HOLDS(io_submit(context, 1, &pointer) == 1);
    }
    for (std::thread &thread : threads)
        thread.join();
    HOLDS(io_destroy(context) == 0);
}

/* ----------------------------------------------------------------------------------- coroutines */

#if defined(__cpp_impl_coroutine)

static adit::Task<void> await(const adit::File &file, int polls_left, int number,
                              std::vector<int> &order)
{
    char byte = 0;
    next_operation(polls_left, 1);
    auto read = file.pread_async(&byte, 1, 0);
    HOLDS((co_await read).value() == 1 && byte == 'x');
    order.push_back(number);
}

static adit::Task<void> drop_others(const adit::File &file, std::vector<int> &order,
                                    std::vector<adit::Task<void>> &others)
{
    co_await await(file, 2, 9, order);
    others.clear();
}

static void tasks_go_on_in_the_order_of_their_results()
{
    const adit::File file = a_file();
    std::vector<int> order;
    const int waits = library.waits, releases = library.releases;
    {
        adit::Loop loop;
        loop.spawn(await(file, 500, 1, order));
        loop.spawn(await(file, 5, 2, order));
        loop.spawn(await(file, 0, 3, order)); /* done at once: no wait */
        HOLDS(order == std::vector<int>{3});
        loop.run_all();
        HOLDS(order == (std::vector<int>{3, 2, 1}));
        loop.spawn(await(file, NEVER, 4, order));
        loop.run(await(file, 5, 5, order));
        HOLDS(order == (std::vector<int>{3, 2, 1, 5}) && library.waits == waits);
    }
    /* The loop's end dropped the task that waited. */
    HOLDS(library.waits == waits + 1 && library.releases == releases + 5);
    std::vector<adit::Task<void>> others;
    adit::Loop loop(true);
    loop.run(drop_others(file, order, others));
    HOLDS(order.back() == 9);
}

static void a_wait_outside_of_a_loop_is_refused()
{
    const adit::File file = a_file();
    std::vector<int> order;
    struct Eager {
        struct promise_type {
            Eager get_return_object() { return {}; }
            std::suspend_never initial_suspend() noexcept { return {}; }
            std::suspend_never final_suspend() noexcept { return {}; }
            void return_void() {}
            void unhandled_exception() { HOLDS(false); }
        };
    };
    int refused = 0, fulfilled = 0;
    [](const adit::File &file, int &refused, int &fulfilled) -> Eager {
        next_operation(NEVER, 0);
        auto sync = file.fsync_async();
        try {
            (co_await sync).value();
        } catch (const std::logic_error &) {
            ++refused;
        }
        next_operation(0, 0);
        (co_await file.fsync_async()).value(); /* done: there is nothing to wait for */
        ++fulfilled;
    }(file, refused, fulfilled);
    HOLDS(refused == 1 && fulfilled == 1);
}

#endif

int main()
{
    limit_time();
    a_poll_is_one_look();
    polling_chooses_how_a_wait_is_done();
    a_timeout_leaves_the_operation_running();
    a_long_wait_is_one_call();
    a_future_that_is_dropped_in_flight_waits();
    a_move_takes_all_along();
    a_sink_gets_the_result_once();
    a_running_future_keeps_the_volume_open();
    one_of_several_is_waited_for();
    a_pool_is_bounded_and_takes_back();
    requests_in_flight_are_not_cancelled();
    a_thread_that_fetches_hears_of_a_submission();
#if defined(__cpp_impl_coroutine)
    tasks_go_on_in_the_order_of_their_results();
    a_wait_outside_of_a_loop_is_refused();
#elif __cplusplus >= 202002L
#error "a compiler without coroutines"
#endif
    for (const adit_op &op : library.ops)
        HOLDS(op.released);
    std::printf("%d claims hold\n", claims.load());
    return 0;
}
