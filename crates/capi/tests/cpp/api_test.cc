/*
 * ApiBase in both forms, and adit::aio, on a real volume.
 *
 *   api_test ADDRESS      formats a volume there (unless mem:... or unix:...); prints "N claims hold"
 */
#include "adit.hpp"
#include "claims.hpp"

#include <cstring>
#include <memory>
#include <sys/file.h>
#include <thread>

using namespace std::chrono_literals;

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

static void descriptors_are_bounded_and_checked(adit::ApiBase &api)
{
    HOLDS(api.open("/a", O_RDWR | O_CREAT | O_CLOEXEC, 0644).value() == 3);
    HOLDS(api.open("/a", O_RDONLY).value() == 4);
    FAILS(EEXIST, api.open("/a", O_RDWR | O_CREAT | O_EXCL));
    FAILS(EINVAL, api.open("/a", O_RDWR | O_ASYNC));
    FAILS(EINVAL, api.open("/a", O_ACCMODE));
    FAILS(ENOTDIR, api.open("/a", O_RDONLY | O_DIRECTORY));
    OK(api.close(3));
    FAILS(EBADF, api.close(3));
    HOLDS(api.file(3) == nullptr && api.file(4) != nullptr);
    HOLDS(api.open("/a", O_RDWR | O_SYNC | O_DIRECT | O_NOATIME).value() == 3);
    HOLDS(api.open("/a", O_WRONLY).value() == 5);
    HOLDS(api.open("/a", O_RDWR).value() == 6);
    FAILS(EMFILE, api.open("/a", O_RDWR));
    char byte = 0;
    for (const int wrong : {-1, 0, 2, 7, 1 << 30}) {
        FAILS(EBADF, api.read(wrong, &byte, 1));
        FAILS(EBADF, api.write(wrong, &byte, 1));
        FAILS(EBADF, api.pread(wrong, &byte, 1, 0));
        FAILS(EBADF, api.pwrite_async(wrong, &byte, 1, 0));
        FAILS(EBADF, api.lseek(wrong, 0, SEEK_SET));
        FAILS(EBADF, api.fsync(wrong));
        FAILS(EBADF, api.close(wrong));
    }
    FAILS(EBADF, api.write(4, &byte, 1));
    FAILS(EBADF, api.read(5, &byte, 1));
    FAILS(EINVAL, api.pread(3, &byte, 1, -1));
    FAILS(EINVAL, api.pwrite_async(3, &byte, 1, -1));
    for (const int descriptor : {3, 4, 5, 6})
        OK(api.close(descriptor));
    OK(api.unlink("/a"));
}

static void reads_and_writes_move_the_position(adit::ApiBase &api)
{
    const int descriptor = api.open("/p", O_RDWR | O_CREAT, 0644).value();
    char back[16] = {};
    for (const bool polling : {false, true}) {
        OK(api.ftruncate(descriptor, 0));
        HOLDS(api.lseek(descriptor, 0, SEEK_SET).value() == 0);
        HOLDS(api.write(descriptor, "hello ", 6, polling).value() == 6);
        HOLDS(api.write(descriptor, "world", 5, polling).value() == 5);
        HOLDS(api.lseek(descriptor, -5, SEEK_CUR).value() == 6);
        HOLDS(api.read(descriptor, back, sizeof(back), polling).value() == 5);
        HOLDS(std::memcmp(back, "world", 5) == 0);
        HOLDS(api.read(descriptor, back, sizeof(back), polling).value() == 0);
        HOLDS(api.pwrite(descriptor, "W", 1, 6, polling).value() == 1);
        HOLDS(api.pread(descriptor, back, 5, 6, polling).value() == 5 && back[0] == 'W');
        HOLDS(api.lseek(descriptor, 0, SEEK_CUR).value() == 11);
        OK(api.fsync(descriptor, polling));
        OK(api.fdatasync(descriptor, polling));
        const int end = api.open("/p", O_WRONLY | O_APPEND).value();
        HOLDS(api.write(end, "!", 1, polling).value() == 1);
        HOLDS(api.lseek(end, 0, SEEK_CUR).value() == 12);
        OK(api.close(end));
    }
    HOLDS(api.lseek(descriptor, 0, SEEK_END).value() == 12);
    FAILS(EINVAL, api.lseek(descriptor, -13, SEEK_END));
    FAILS(EINVAL, api.lseek(descriptor, 0, 99));
    FAILS(EOVERFLOW, api.lseek(descriptor, std::numeric_limits<off_t>::max(), SEEK_END));
    FAILS(ENXIO, api.lseek(descriptor, -1, SEEK_DATA));
    FAILS(ENXIO, api.lseek(descriptor, 12, SEEK_DATA));
    HOLDS(api.lseek(descriptor, 0, SEEK_HOLE).value() == 12);

    OK(api.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, 1 << 16));
    OK(api.fallocate(descriptor, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096));
    OK(api.fallocate(descriptor, FALLOC_FL_ZERO_RANGE, 0, 8192));
    FAILS(EOPNOTSUPP, api.fallocate(descriptor, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    FAILS(EINVAL, api.fallocate(descriptor, 0, 0, 0));
    FAILS(EINVAL, api.ftruncate(descriptor, -1));
    struct ::stat stat {};
    OK(api.fstat(descriptor, &stat));
    HOLDS(stat.st_size == 8192 && S_ISREG(stat.st_mode) && stat.st_nlink == 1);
    HOLDS(stat.st_blocks > 0);
    FAILS(EFAULT, api.fstat(descriptor, nullptr));
    const int other = api.open("/p", O_RDWR).value();
    OK(api.flock(descriptor, LOCK_EX));
    FAILS(EWOULDBLOCK, api.flock(other, LOCK_SH | LOCK_NB));
    OK(api.flock(descriptor, LOCK_UN));
    OK(api.close(other));
    OK(api.close(descriptor));
    OK(api.unlink("/p"));
}

static void names_change(adit::ApiBase &api)
{
    struct ::stat stat {};
    OK(api.mkdir("/d", 0755));
    OK(api.close(api.open("/d/a", O_CREAT | O_WRONLY, 0600).value()));
    OK(api.link("/d/a", "/d/b"));
    OK(api.rename("/d/b", "/d/c"));
    OK(api.symlink("c", "/d/s"));
    HOLDS(api.readlink("/d/s").value() == "c");
    OK(api.stat("/d/s", &stat));
    HOLDS(S_ISREG(stat.st_mode) && stat.st_nlink == 2 && (stat.st_mode & 0777) == 0600);
    OK(api.lstat("/d/s", &stat));
    HOLDS(S_ISLNK(stat.st_mode));
    FAILS(ENOENT, api.stat("/d/b", &stat));
    OK(api.chmod("/d/a", 0644));
    OK(api.access("/d/a", R_OK | W_OK));
    OK(api.truncate("/d/a", 5));
    FAILS(EINVAL, api.truncate("/d/a", -5));
    auto directory = api.opendir("/d").value();
    adit_dirent entry{};
    int entries = 0;
    while (directory.next(entry).value())
        ++entries;
    HOLDS(entries == 3);
    OK(api.syncfs());
    FAILS(ENOTEMPTY, api.rmdir("/d"));
    for (const char *name : {"/d/a", "/d/c", "/d/s"})
        OK(api.unlink(name));
    OK(api.rmdir("/d"));
}

static void futures_of_the_api(adit::ApiBase &api, bool are_done_at_once)
{
    const int descriptor = api.open("/f", O_RDWR | O_CREAT, 0644).value();
    const std::size_t depth = api.futures().capacity();
    const std::string bytes(1 << 16, 'f');
    std::string back(depth << 16, '-');
    for (const bool polling : {false, true}) {
        std::vector<adit::FuturePointer> futures;
        std::size_t sunk = 0;
        std::vector<std::int64_t> results(depth, -1);
        for (std::size_t i = 0; i < depth; ++i) {
            const auto offset = static_cast<off_t>(i << 16);
            futures.push_back(
                api.pwrite_async(descriptor, bytes.data(), bytes.size(), offset, polling).value());
            futures.back()->sink(&results[i]);
            HOLDS(!are_done_at_once || (futures.back()->done() && results[i] == 1 << 16));
        }
        FAILS(EAGAIN, api.fsync_async(descriptor));
        while (!futures.empty()) {
            const auto done = adit::wait_any(futures.begin(), futures.end(), 1min);
            HOLDS(done != futures.end() && (*done)->get().value() == bytes.size());
            futures.erase(done);
        }
        for (const std::int64_t result : results)
            sunk += result == 1 << 16 ? 1 : 0;
        HOLDS(sunk == depth && api.futures().in_use() == 0);
        for (std::size_t i = 0; i < depth; ++i) {
            const auto offset = static_cast<off_t>(i << 16);
            futures.push_back(
                api.pread_async(descriptor, &back[i << 16], 1 << 16, offset, polling).value());
        }
        futures.clear(); /* waits for all */
        HOLDS(back == std::string(depth << 16, 'f'));
        back.assign(depth << 16, '-');
        const auto appended = api.append_async(descriptor, "tail", 4, polling).value()->get();
        HOLDS(appended.value() == depth << 16);
        OK(api.ftruncate(descriptor, static_cast<off_t>(depth << 16)));
        OK(api.fdatasync_async(descriptor, polling).value()->get());
        OK(api.fsync_async(descriptor, polling).value()->get(1min));
    }
    const int reader = api.open("/f", O_RDONLY).value();
    FAILS(EBADF, api.pwrite_async(reader, "x", 1, 0).value()->get());
    OK(api.close(reader));
    OK(api.close(descriptor));
    OK(api.unlink("/f"));
}

static void both_forms(const adit::Volume &volume)
{
    adit::ApiOptions options;
    options.descriptors_max = 4;
    options.futures_max = 16;
    const std::unique_ptr<adit::ApiBase> forms[2] = {
        std::make_unique<adit::SyncApi>(volume, options),
        std::make_unique<adit::AsyncApi>(volume, options),
    };
    for (int i = 0; i < 2; ++i) {
        descriptors_are_bounded_and_checked(*forms[i]);
        reads_and_writes_move_the_position(*forms[i]);
        names_change(*forms[i]);
        futures_of_the_api(*forms[i], i == 0);
    }
}

static void what_an_api_has_open_it_closes_and_a_future_outlives_it()
{
    adit::Volume volume = adit::Volume::open("mem:64M").value();
    const std::string bytes(1 << 16, 'o');
    {
        adit::FuturePointer future;
        {
            adit::AsyncApi api(volume);
            const int descriptor = api.open("/o", O_RDWR | O_CREAT, 0644).value();
            future = api.pwrite_async(descriptor, bytes.data(), bytes.size(), 0).value();
            FAILS(EBUSY, volume.close());
        }
        HOLDS(future->get().value() == bytes.size());
    }
    HOLDS(volume.stat("/o").value().size_bytes == bytes.size());
    OK(volume.close());
}

static void aio_does_what_libaio_does(const adit::Volume &volume)
{
    using namespace adit::aio;
    adit::AsyncApi api(volume);
    const int descriptor = api.open("/aio", O_RDWR | O_CREAT, 0644).value();
    io_context_t context = nullptr;
    HOLDS(io_setup(api, 0, &context) == -EINVAL && io_setup(api, 1, nullptr) == -EINVAL);
    HOLDS(io_setup(api, 64, &context) == 0 && io_setup(api, 64, &context) == -EINVAL);

    static char memory[64][4096];
    iocb requests[64];
    iocb *pointers[64];
    io_event events[64];
    bool seen[64] = {};
    for (int i = 0; i < 64; ++i) {
        std::memset(memory[i], 'a' + i % 26, sizeof(memory[i]));
        io_prep_pwrite(&requests[i], descriptor, memory[i], sizeof(memory[i]), i * 4096LL);
        requests[i].data = &seen[i];
        pointers[i] = &requests[i];
    }
    HOLDS(io_submit(context, 64, pointers) == 64);
    for (int left = 64; left > 0;) {
        const int got = io_getevents(context, 1, 64, events, nullptr);
        HOLDS(got >= 1 && got <= left);
        for (int i = 0; i < got; ++i) {
            HOLDS(events[i].res == 4096 && events[i].res2 == 0);
            bool &flag = *static_cast<bool *>(events[i].data);
            HOLDS(!flag && events[i].obj == &requests[&flag - seen]);
            flag = true;
        }
        left -= got;
    }
    HOLDS(api.volume().stat("/aio").value().size_bytes == 64 * 4096);

    io_prep_fdsync(&requests[0], descriptor);
    io_prep_fsync(&requests[1], descriptor);
    std::memset(memory, 0, sizeof(memory));
    io_prep_pread(&requests[2], descriptor, memory[0], 4096, 4096);
    io_prep_pread(&requests[3], descriptor, memory[1], 4096, 64 * 4096); /* at the end */
    HOLDS(io_submit(context, 4, pointers) == 4);
    const timespec minute{60, 0}, none{0, 0}, bad{0, 1000000000};
    HOLDS(io_getevents(context, 4, 4, events, &minute) == 4);
    for (const io_event &event : {events[0], events[1], events[2], events[3]})
        HOLDS(event.res == (event.obj == &requests[2] ? 4096 : 0));
    HOLDS(memory[0][0] == 'b');

    io_prep_pread(&requests[0], 99, memory[0], 1, 0);
    io_prep_pread(&requests[1], descriptor, memory[0], 1, -1);
    io_prep_fsync(&requests[2], descriptor);
    requests[2].aio_lio_opcode = 77;
    io_prep_pread(&requests[3], descriptor, memory[0], 1, 0);
    HOLDS(io_submit(context, 1, &pointers[0]) == -EBADF);
    HOLDS(io_submit(context, 1, &pointers[1]) == -EINVAL);
    HOLDS(io_submit(context, 1, &pointers[2]) == -EINVAL);
    HOLDS(io_submit(context, 0, nullptr) == 0 && io_submit(context, 1, nullptr) == -EINVAL);
    HOLDS(io_submit(nullptr, 1, pointers) == -EINVAL);
    HOLDS(io_submit(context, -1, pointers) == -EINVAL);
    iocb *mixed[3] = {pointers[3], pointers[0], pointers[3]};
    HOLDS(io_submit(context, 3, mixed) == 1);
    HOLDS(io_getevents(context, 1, 2, events, &minute) == 1 && events[0].res == 1);
    mixed[0] = nullptr;
    HOLDS(io_submit(context, 1, mixed) == -EFAULT);

    HOLDS(io_getevents(context, 1, 1, events, &none) == 0);
    HOLDS(io_getevents(context, 2, 1, events, &none) == -EINVAL);
    HOLDS(io_getevents(context, 0, 1, nullptr, &none) == -EINVAL);
    HOLDS(io_getevents(context, 1, 1, events, &bad) == -EINVAL);
    HOLDS(io_getevents(nullptr, 1, 1, events, &none) == -EINVAL);
    const timespec moment{0, 5000000};
    const auto begun = std::chrono::steady_clock::now();
    HOLDS(io_getevents(context, 1, 1, events, &moment) == 0);
    HOLDS(std::chrono::steady_clock::now() - begun >= 5ms);
    HOLDS(io_cancel(context, &requests[0], events) == -EINVAL);
    HOLDS(io_cancel(nullptr, &requests[0], events) == -EINVAL);

    const int reader = api.open("/aio", O_RDONLY).value();
    io_prep_pwrite(&requests[0], reader, memory[0], 1, 0);
    HOLDS(io_submit(context, 1, pointers) == 1);
    HOLDS(io_getevents(context, 1, 1, events, nullptr) == 1 && events[0].res == -EBADF);

    /* One thread submits, another one fetches. */
    std::thread fetches([&] {
        for (int left = 1000; left > 0;) {
            io_event some[16];
            const int got = io_getevents(context, 1, 16, some, nullptr);
            HOLDS(got >= 1);
            for (int i = 0; i < got; ++i)
                HOLDS(some[i].res == 512);
            left -= got;
        }
    });
    iocb reused;
    iocb *pointer = &reused;
    for (int i = 0; i < 1000;) {
        io_prep_pread(&reused, descriptor, memory[i % 64], 512, i % 64 * 4096LL);
        const int submitted = io_submit(context, 1, &pointer);
        HOLDS(submitted == 1 || submitted == -EAGAIN);
        i += submitted == 1 ? 1 : 0;
        if (submitted != 1)
            std::this_thread::yield();
    }
    fetches.join();

    io_prep_fsync(&requests[0], descriptor);
    HOLDS(io_submit(context, 1, pointers) == 1);
    HOLDS(io_destroy(context) == 0 && io_destroy(nullptr) == -EINVAL);
    OK(api.close(reader));
    OK(api.close(descriptor));
    OK(api.unlink("/aio"));
}

int main(int argc, char **argv)
{
    limit_time();
    adit::Volume volume = opened(argc > 1 ? argv[1] : "mem:128M");
    both_forms(volume);
    what_an_api_has_open_it_closes_and_a_future_outlives_it();
    aio_does_what_libaio_does(volume);
    OK(volume.close());
    std::printf("%d claims hold\n", claims.load());
    return 0;
}
