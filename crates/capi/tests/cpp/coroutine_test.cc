/*
 * co_await on futures on a real volume. C++20.
 *
 *   coroutine_test ADDRESS      formats a volume there (unless mem:... or unix:...); prints "N claims hold"
 */
#include "adit.hpp"
#include "claims.hpp"

#include <cstring>

#if !defined(__cpp_impl_coroutine)
#error "a compiler without coroutines"
#endif

static constexpr unsigned CREATE = ADIT_O_RDWR | ADIT_O_CREAT;

static adit::Volume opened(const std::string &address)
{
    if (address.rfind("mem:", 0) != 0 && address.rfind("unix:", 0) != 0) {
        adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
        format.size_bytes = 256u << 20;
        format.flags = ADIT_MKFS_FORCE;
        OK(adit::mkfs(address, format));
    }
    return adit::Volume::open(address).value();
}

static adit::Task<std::size_t> write_page(const adit::File &file, std::uint64_t page, bool polling)
{
    char bytes[4096];
    std::memset(bytes, static_cast<int>('a' + page % 26), sizeof(bytes));
    const auto written = co_await file.pwrite_async(bytes, sizeof(bytes), page * 4096, polling);
    co_return written.value();
}

static adit::Task<std::uint64_t> write_some(const adit::File &file, std::uint64_t pages,
                                            bool polling)
{
    std::uint64_t sum = 0;
    for (std::uint64_t page = 0; page < pages; ++page)
        sum += co_await write_page(file, page, polling);
    auto sync = file.fdatasync_async(polling);
    (co_await sync).value();
    co_return sum;
}

static void a_task_awaits_futures_and_tasks(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/tasks", CREATE).value();
    for (const bool polling : {false, true}) {
        adit::Loop loop(polling);
        HOLDS(adit::Loop::current() == nullptr);
        HOLDS(loop.run(write_some(file, 50, polling)) == 50 * 4096);
        HOLDS(adit::Loop::current() == nullptr);
    }
    char back = 0;
    HOLDS(file.pread(&back, 1, 27 * 4096).value() == 1 && back == 'b');
    OK(volume.unlink("/tasks"));
}

static adit::Task<void> write_and_sync(const adit::File &file, std::uint64_t page, int &done)
{
    co_await write_page(file, page, false);
    (co_await file.fsync_async()).value();
    ++done;
}

static void many_tasks_run_side_by_side(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/many", CREATE).value();
    adit::Loop loop;
    int done = 0;
    for (std::uint64_t page = 0; page < 128; ++page)
        loop.spawn(write_and_sync(file, page, done));
    loop.run_all();
    HOLDS(done == 128 && file.size().value() == 128 * 4096);
    loop.run_all(); /* nothing is left */
    OK(volume.unlink("/many"));
}

static adit::Task<void> fail(const adit::File &reader)
{
    const auto refused = co_await reader.pwrite_async("x", 1, 0);
    FAILS(EBADF, refused);
    refused.value();
}

static adit::Task<int> catch_it(const adit::File &reader)
{
    try {
        co_await fail(reader);
    } catch (const adit::Error &error) {
        co_return error.code().value();
    }
    co_return 0;
}

static void exceptions_go_to_who_awaits(const adit::Volume &volume)
{
    OK(volume.open_file("/reader", CREATE).value().close());
    const adit::File reader = volume.open_file("/reader", ADIT_O_RDONLY).value();
    adit::Loop loop;
    HOLDS(loop.run(catch_it(reader)) == EBADF);
    int caught = 0;
    try {
        loop.run(fail(reader));
    } catch (const std::system_error &error) {
        caught += error.code() == std::errc::bad_file_descriptor ? 1 : 0;
    }
    loop.spawn(fail(reader));
    try {
        loop.run_all();
    } catch (const std::system_error &) {
        ++caught;
    }
    HOLDS(caught == 2);
    loop.run_all();
    OK(volume.unlink("/reader"));
}

static adit::Task<void> read_big(const adit::File &file, bool &ended)
{
    std::string memory(1 << 20, '-');
    auto read = file.pread_async(memory.data(), memory.size(), 0);
    auto sync = file.fsync_async();
    (co_await sync).value();
    (co_await read).value();
    ended = true;
}

static void a_task_that_is_dropped_waits_for_its_operation(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/dropped", CREATE).value();
    const std::string bytes(1 << 20, 'd');
    for (int i = 0; i < 50; ++i) {
        OK(file.pwrite(bytes.data(), bytes.size(), 0));
        bool ended = false, never = false;
        {
            const adit::Task<void> not_begun = read_big(file, never);
            adit::Loop loop;
            loop.spawn(read_big(file, ended));
        }
        HOLDS(!never);
    }
    OK(volume.unlink("/dropped"));
}

static adit::Task<int> give(int value) { co_return value; }

static adit::Task<int> await_twice()
{
    adit::Task<int> task = give(1);
    const int first = co_await std::move(task);
    co_return first + co_await std::move(task);
}

static void misuse_is_refused()
{
    adit::Loop loop;
    int caught = 0;
    try {
        loop.run(await_twice());
    } catch (const std::logic_error &) {
        ++caught;
    }
    auto task = give(2);
    auto moved = std::move(task);
    try {
        loop.run(std::move(task));
    } catch (const std::logic_error &) {
        ++caught;
    }
    HOLDS(loop.run(std::move(moved)) == 2 && caught == 2);
}

int main(int argc, char **argv)
{
    limit_time();
    adit::Volume volume = opened(argc > 1 ? argv[1] : "mem:128M");
    a_task_awaits_futures_and_tasks(volume);
    many_tasks_run_side_by_side(volume);
    exceptions_go_to_who_awaits(volume);
    a_task_that_is_dropped_waits_for_its_operation(volume);
    misuse_is_refused();
    OK(volume.close());
    std::printf("%d claims hold\n", claims.load());
    return 0;
}
