/*
 * Every call of Volume, File, Directory, Blob and Buffer on a real volume, with results, errors,
 * exceptions and moves.
 *
 *   objects_test ADDRESS      formats a volume there (unless mem:... or unix:...); prints "N claims hold"
 */
#include "adit.hpp"
#include "claims.hpp"

#include <algorithm>
#include <cstring>
#include <sys/stat.h>
#include <sys/wait.h>

using namespace std::chrono_literals;

static constexpr unsigned CREATE = ADIT_O_RDWR | ADIT_O_CREAT;

static adit::Volume opened(const std::string &address)
{
    if (address.rfind("mem:", 0) != 0 && address.rfind("unix:", 0) != 0) {
        adit_mkfs_options format = ADIT_MKFS_OPTIONS_INIT;
        format.size_bytes = 256u << 20;
        format.flags = ADIT_MKFS_FORCE;
        OK(adit::mkfs(address, format));
        format.flags = 0;
        FAILS(EEXIST, adit::mkfs(address, format));
    }
    return adit::Volume::open(address).value();
}

static void errors_have_a_code_a_text_and_an_exception(const adit::Volume &volume)
{
    const auto missing = volume.open_file("/missing", ADIT_O_RDONLY);
    FAILS(ENOENT, missing);
    HOLDS(!missing && missing.error() == std::errc::no_such_file_or_directory);
    HOLDS(missing.error().category() == adit::category());
    HOLDS(std::strcmp(missing.error().category().name(), "adit") == 0);
    HOLDS(missing.error().message() == std::generic_category().message(ENOENT));
    HOLDS(missing.message().find("missing") != std::string::npos);
    const std::string text = missing.message();
    FAILS(EINVAL, volume.open_file("/x", 0xffffffff));
    HOLDS(missing.message() == text); /* later errors don't change it */
    bool caught = false;
    try {
        volume.unlink("/missing").value();
    } catch (const std::system_error &error) {
        caught = true;
        HOLDS(error.code() == std::errc::no_such_file_or_directory);
        const std::string what = error.what();
        HOLDS(what.find("missing") != std::string::npos);
        HOLDS(what.find("ENOENT") != std::string::npos);
    }
    HOLDS(caught);
    caught = false;
    try {
        const adit::File file = volume.open_file("/missing", ADIT_O_RDONLY).value();
    } catch (const adit::Error &error) {
        const adit::Error copy = error;
        caught = std::string(copy.what()) == text;
    }
    HOLDS(caught);
    const adit::Result<int> ok = 5;
    HOLDS(ok && ok.value() == 5 && ok.value_or(6) == 5 && ok.message().empty() && !ok.error());
    const adit::Result<int> not_ok = adit::Fault(EIO, "no");
    HOLDS(not_ok.value_or(6) == 6 && not_ok.message() == "no");
    HOLDS(adit::Result<std::string>(std::string("a")).value_or("b") == "a");
    /* A zero inside a path is no end of it. */
    FAILS(EINVAL, volume.mkdir(std::string("/a\0b", 4)));
    FAILS(ENOENT, volume.stat("/a"));
}

static void what_is_closed_or_moved_from_answers_einval()
{
    adit::Volume volume = adit::Volume::open("mem:64M").value();
    HOLDS(volume.is_open());
    const unsigned fresh = ADIT_O_RDWR | ADIT_O_CREAT | ADIT_O_EXCL;
    HOLDS(volume.create_and_sync("/made", fresh, "xy", 2).value().size().value() == 2);
    FAILS(EEXIST, volume.create_and_sync("/made", fresh, "xy", 2));
    adit::File file = volume.open_file("/f", CREATE).value();
    adit::File moved = std::move(file);
    HOLDS(!file.is_open() && moved.is_open());
    char byte = 'b';
    FAILS(EINVAL, file.pread(&byte, 1, 0));
    FAILS(EINVAL, file.pwrite_async(&byte, 1, 0).get());
    FAILS(EINVAL, file.fsync_async(true).get());
    FAILS(EINVAL, file.close());
    file = std::move(moved);
    HOLDS(file.is_open() && file.pwrite(&byte, 1, 0).value() == 1);
    adit::File other = volume.open_file("/g", CREATE).value();
    file = std::move(other); /* closes /f */
    HOLDS(file.size().value() == 0);
    FAILS(EBUSY, volume.close());
    HOLDS(volume.is_open());
    OK(file.close());
    FAILS(EINVAL, file.fsync());
    OK(volume.close());
    HOLDS(!volume.is_open());
    FAILS(EINVAL, volume.close());
    FAILS(EINVAL, volume.stat("/"));
    FAILS(EINVAL, adit::Volume().syncfs());
    FAILS(EINVAL, adit::File().fsync());
    adit_dirent entry{};
    FAILS(EINVAL, adit::Directory().next(entry));
    FAILS(EINVAL, adit::Blob().size());
    static_assert(!std::is_copy_constructible_v<adit::File>, "");
    static_assert(!std::is_copy_constructible_v<adit::Volume>, "");
    static_assert(!std::is_copy_assignable_v<adit::Buffer>, "");
    static_assert(std::is_nothrow_move_assignable_v<adit::Directory>, "");
}

/* An image is locked while it is open, so the second open shows when it was closed. */
static void the_last_of_a_volume_closes_it(const std::string &address)
{
    std::string bytes(1 << 20, 'l');
    adit::Future<std::size_t> write;
    {
        adit::File file;
        {
            const adit::Volume volume = adit::Volume::open(address).value();
            FAILS(EBUSY, adit::Volume::open(address));
            file = volume.open_file("/last", CREATE).value();
        }
        FAILS(EBUSY, adit::Volume::open(address));
        write = file.pwrite_async(bytes.data(), bytes.size(), 0);
    }
    HOLDS(write.get().value() == bytes.size());
    const adit::Volume volume = adit::Volume::open(address).value();
    HOLDS(volume.stat("/last").value().size_bytes == bytes.size());
    adit::Volume shared = volume.share();
    OK(shared.unlink("/last"));
}

static void a_users_handle_keeps_the_volume_open(const std::string &address)
{
    adit::Volume user = adit::Volume::open(address).value().on_behalf_of(1000, 1000).value();
    OK(user.stat("/"));
    FAILS(EBUSY, adit::Volume::open(address));
    OK(user.close());
    OK(adit::Volume::open(address).value().close());
}

static void a_volume_describes_itself(const adit::Volume &volume)
{
    HOLDS(std::strchr(adit::version(), '.') != nullptr);
    HOLDS(adit::api_version() == ADIT_API_MAJOR * 1000 + ADIT_API_MINOR);
    OK(adit::options_from_environment());
    setenv("ADIT_CACHE", "much", 1);
    FAILS(EINVAL, adit::options_from_environment());
    unsetenv("ADIT_CACHE");
    for (const char *wrong : { "soon", "-1", "4294968" }) {
        setenv("ADIT_RECONNECT", wrong, 1);
        FAILS(EINVAL, adit::options_from_environment());
    }
    setenv("ADIT_RECONNECT", "30", 1);
    OK(adit::options_from_environment());
    unsetenv("ADIT_RECONNECT");
    OK(adit::set_log(nullptr, nullptr, 0));
    FAILS(EINVAL, adit::set_log([](void *, int, const char *) {}, nullptr, 99));
    OK(volume.survives());
    OK(volume.is_connected());
    const adit_statfs statfs = volume.statfs().value();
    HOLDS(statfs.page_bytes == 4096 && statfs.free_bytes > 0);
    OK(volume.syncfs());
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    options.flags = 1u << 31;
    HOLDS(!adit::Volume::open("mem:64M", options));
    FAILS(ENOENT, adit::Volume::open("/no/such/folder/volume.adit"));
}

static void files_read_and_write(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/file", CREATE).value();
    char page[4096], back[4096];
    std::memset(page, 'p', sizeof(page));
    HOLDS(file.pwrite(page, sizeof(page), 0).value() == 4096);
    HOLDS(file.pread(back, sizeof(back), 96).value() == 4000 && back[3999] == 'p');
    HOLDS(file.append("tail", 4).value() == 4096);
    char one[2] = {}, two[3] = {};
    const iovec in[2] = {{one, 2}, {two, 3}};
    HOLDS(file.preadv(in, 2, 4095).value() == 5 && one[0] == 'p' && one[1] == 't' && two[2] == 'l');
    const iovec out[2] = {{one, 2}, {two, 2}};
    HOLDS(file.pwritev(out, 2, 8192, ADIT_WRITE_DSYNC).value() == 4);
    HOLDS(file.appendv(out, 2).value() == 8196 && file.size().value() == 8200);
    adit_read_request requests[2] = {{0, back, 4, 0}, {4096, back + 4, 4, 0}};
    OK(file.pread_many(requests, 2));
    HOLDS(requests[1].result == 4 && std::memcmp(back, "pppptail", 8) == 0);
    HOLDS(file.atomic_write_max().value() >= 4096);
    const adit_write_range ranges[2] = {{0, "A", 1}, {5000, "B", 1}};
    OK(file.pwrite_atomic(ranges, 2));
    HOLDS(file.pread(back, 1, 5000).value() == 1 && back[0] == 'B');
    {
        adit::Buffer borrowed = file.pread_borrow(4096, 0).value();
        HOLDS(borrowed.size() == 4096 && borrowed.data()[0] == 'A');
        adit::Buffer moved = std::move(borrowed);
        HOLDS(borrowed.data() == nullptr && moved.data()[1] == 'p');
        borrowed = std::move(moved);
        borrowed.release();
        HOLDS(borrowed.size() == 0);
    }
    adit::Buffer memory = volume.allocate(8192).value();
    HOLDS(memory.size() == 8192 && reinterpret_cast<std::uintptr_t>(memory.data()) % 4096 == 0);
    std::memset(memory.data(), 'm', memory.size());
    HOLDS(file.pwrite(memory.data(), memory.size(), 0).value() == 8192);
    OK(file.fsync());
    OK(file.fdatasync());
    OK(file.start_write_back());

    OK(file.truncate(0));
    OK(file.fallocate(ADIT_FALLOC_KEEP_SIZE, 0, 1 << 20));
    FAILS(EINVAL, file.fallocate(0xff00, 0, 1));
    OK(file.pwrite(page, sizeof(page), 8192));
    HOLDS(file.next_data(0).value() == 8192 && file.next_hole(8192).value() == 12288);
    FAILS(ENXIO, file.next_data(1 << 20));
    const adit::File copy = volume.open_file("/copy", CREATE).value();
    HOLDS(file.copy_range(8192, copy, 0, 4096).value() == 4096);
    HOLDS(copy.pread(back, 4096, 0).value() == 4096 && std::memcmp(page, back, 4096) == 0);
    const adit::File reader = volume.open_file("/copy", ADIT_O_RDONLY).value();
    FAILS(EBADF, reader.pwrite(page, 1, 0));
    OK(volume.unlink("/copy"));
    OK(volume.unlink("/file"));
}

static void operations_are_submitted(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/async", CREATE).value();
    for (const bool polling : {false, true}) {
        OK(file.truncate(0));
        char page[4096], back[4096] = {};
        std::memset(page, 'a', sizeof(page));
        HOLDS(file.pwrite_async(page, sizeof(page), 0, polling).get().value() == 4096);
        HOLDS(file.append_async("tail", 4, polling).get().value() == 4096);
        auto read = file.pread_async(back, sizeof(back), 4, polling);
        while (!read.poll())
            continue;
        HOLDS(read.get().value() == 4096 && std::memcmp(back + 4092, "tail", 4) == 0);
        OK(file.fsync_async(polling).get());
        OK(file.fdatasync_async(polling).get(1min));
        std::vector<adit::Future<std::size_t>> writes;
        for (std::uint64_t i = 0; i < 128; ++i)
            writes.push_back(file.pwrite_async(page, sizeof(page), i * 4096, polling));
        while (!writes.empty()) {
            const auto done = adit::wait_any(writes.begin(), writes.end());
            HOLDS(done->get().value() == 4096);
            writes.erase(done);
        }
        HOLDS(file.size().value() == 128 * 4096);
        /* Dropped in flight, many times; the sanitizers see a use of memory that is gone. */
        for (std::uint64_t i = 0; i < 64; ++i) {
            const std::string bytes(1 << 16, 'd');
            const auto dropped = file.pwrite_async(bytes.data(), bytes.size(), i << 16, polling);
        }
        const adit::File reader = volume.open_file("/async", ADIT_O_RDONLY).value();
        std::int64_t sunk = 0;
        auto refused = reader.pwrite_async(page, 1, 0, polling);
        refused.sink(&sunk);
        FAILS(EBADF, refused.get());
        HOLDS(sunk == -EBADF);
        FAILS(EINVAL, file.pwrite_async(nullptr, 1, 0, polling).get());
    }
    OK(volume.unlink("/async"));
}

static void names_change(const adit::Volume &volume)
{
    OK(volume.mkdir("/folder", 0700));
    FAILS(EEXIST, volume.mkdir("/folder"));
    OK(volume.open_file("/folder/a", CREATE).value().close());
    OK(volume.link("/folder/a", "/folder/b"));
    OK(volume.rename("/folder/b", "/folder/c"));
    FAILS(EEXIST, volume.rename("/folder/c", "/folder/a", ADIT_RENAME_NOREPLACE));
    OK(volume.symlink("a", "/folder/s"));
    HOLDS(volume.readlink("/folder/s").value() == "a");
    FAILS(EINVAL, volume.readlink("/folder/a"));
    OK(volume.mknod("/folder/p", S_IFIFO | 0600));
    OK(volume.truncate("/folder/a", 100));
    HOLDS(volume.stat("/folder/s").value().size_bytes == 100);
    HOLDS(S_ISLNK(volume.lstat("/folder/s").value().mode));
    OK(volume.fsync_path("/folder"));
    OK(volume.access("/folder/a", ADIT_R_OK | ADIT_W_OK));

    adit::Directory directory = volume.open_directory("/folder").value();
    std::vector<std::string> names;
    adit_dirent entry{};
    std::uint64_t second = 0;
    while (directory.next(entry).value()) {
        names.push_back(entry.name);
        if (names.size() == 2)
            second = entry.cookie;
    }
    std::string third = names[2];
    std::sort(names.begin(), names.end());
    HOLDS(names == std::vector<std::string>{"a", "c", "p", "s"});
    OK(directory.seek(second));
    HOLDS(directory.next(entry).value() && entry.name == third);
    adit::Directory moved = std::move(directory);
    FAILS(EINVAL, directory.next(entry));
    OK(moved.seek(0));
    OK(moved.close());
    FAILS(ENOTDIR, volume.open_directory("/folder/a"));

    for (const char *name : {"/folder/a", "/folder/c", "/folder/p", "/folder/s"})
        OK(volume.unlink(name));
    OK(volume.rmdir("/folder"));
}

static void attributes_change(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/attributes", CREATE).value();
    const adit_time times[2] = {{1, 2, 0}, {3, 4, 0}};
    OK(volume.chmod("/attributes", 0640));
    HOLDS((file.stat().value().mode & 07777) == 0640);
    OK(file.chmod(0600));
    OK(volume.chown("/attributes", UINT32_MAX, UINT32_MAX));
    OK(file.chown(UINT32_MAX, UINT32_MAX));
    OK(volume.utimens("/attributes", times));
    HOLDS(file.stat().value().mtime.seconds == 3);
    OK(file.utimens(nullptr));
    HOLDS(file.stat().value().mtime.seconds > 3);

    const std::string value(300, 'v');
    OK(volume.set_xattr("/attributes", "user.a", value.data(), value.size()));
    FAILS(EEXIST, file.set_xattr("user.a", "", 0, ADIT_XATTR_CREATE));
    OK(file.set_xattr("user.b", "", 0));
    HOLDS(file.get_xattr("user.a").value() == value);
    HOLDS(volume.get_xattr("/attributes", "user.b").value().empty());
    auto names = file.list_xattrs().value();
    std::sort(names.begin(), names.end());
    HOLDS(names == std::vector<std::string>{"user.a", "user.b"});
    HOLDS(volume.list_xattrs("/attributes").value().size() == 2);
    OK(file.remove_xattr("user.b"));
    OK(volume.remove_xattr("/attributes", "user.a"));
    FAILS(ENODATA, file.get_xattr("user.a"));
    HOLDS(file.list_xattrs().value().empty());
    FAILS(ENOENT, volume.list_xattrs("/missing"));
    OK(volume.unlink("/attributes"));
}

static void locks_exclude(const adit::Volume &volume)
{
    const adit::File one = volume.open_file("/locks", CREATE).value();
    const adit::File two = volume.open_file("/locks", CREATE).value();
    OK(one.flock(ADIT_LOCK_EXCLUSIVE));
    FAILS(EWOULDBLOCK, two.flock(ADIT_LOCK_SHARED | ADIT_LOCK_NONBLOCKING));
    OK(one.flock(ADIT_LOCK_UNLOCK));
    adit_range_lock lock{};
    lock.offset = 10;
    lock.len = 10;
    lock.owner = 1;
    lock.pid = 77;
    lock.operation = ADIT_LOCK_EXCLUSIVE | ADIT_LOCK_POSIX;
    OK(one.lock_range(lock));
    lock.owner = 2;
    const auto blocker = two.test_lock(lock).value();
    HOLDS(blocker && blocker->pid == 77 && blocker->offset == 10);
    OK(one.release_locks(1));
    HOLDS(!two.test_lock(lock).value());
    OK(volume.unlink("/locks"));
}

static void blobs_keep_pages(const adit::Volume &volume)
{
    const adit_blob_id id = volume.create_blob().value();
    adit::Blob blob = volume.open_blob(id).value();
    HOLDS(blob.write("blob", 4, 4096).value() == 4 && blob.size().value() == 4100);
    char back[4];
    HOLDS(blob.read(back, 4, 4096).value() == 4 && std::memcmp(back, "blob", 4) == 0);
    OK(blob.resize(10));
    OK(blob.set_xattr("kind", "test", 4));
    HOLDS(blob.get_xattr("kind").value() == "test");
    HOLDS(blob.list_xattrs().value() == std::vector<std::string>{"kind"});
    OK(blob.remove_xattr("kind"));
    FAILS(ENODATA, blob.remove_xattr("kind"));
    OK(blob.sync());
    FAILS(EBUSY, volume.delete_blob(id));
    OK(blob.close());
    adit_blob_id next{0, 0};
    HOLDS(volume.next_blob(next).value() && next.slot == id.slot);
    HOLDS(!volume.next_blob(next).value());
    OK(volume.delete_blob(id));
    FAILS(ENOENT, volume.open_blob(id));
}

static void a_user_has_its_own_rights()
{
    adit::Volume volume = adit::Volume::open("mem:64M").value();
    OK(volume.mkdir("/private", 0700));
    adit::File file;
    {
        adit::Volume user = volume.on_behalf_of(1000, 1000, {1000, 1001}).value();
        FAILS(EACCES, user.open_file("/private/x", CREATE));
        OK(volume.chmod("/", 0777));
        file = user.open_file("/own", CREATE).value();
        HOLDS(file.stat().value().uid == 1000);
        FAILS(EBUSY, volume.close());
    }
    OK(file.pwrite("x", 1, 0)); /* files outlive it */
    OK(file.close());
    OK(volume.close());
}

/* Nothing hangs or crashes in the destructors of a child that inherits all kinds of objects. */
static void a_forked_child_has_dead_objects(const adit::Volume &volume)
{
    adit::File file = volume.open_file("/fork", CREATE).value();
    std::string bytes(1 << 20, 'f');
    auto write = std::make_unique<adit::Future<std::size_t>>(
        file.pwrite_async(bytes.data(), bytes.size(), 0));
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        limit_time();
        FAILS(EBADF, file.fsync());
        write.reset();
        { const adit::File dropped = std::move(file); }
        _exit(0);
    }
    int status = -1;
    HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    HOLDS(write->get().value() == bytes.size());
    OK(volume.unlink("/fork"));
}

static void count_up(void *user_data, std::int64_t result)
{
    HOLDS(result >= 0);
    ++*static_cast<int *>(user_data);
}

static void a_queue_takes_completions_of_any(const adit::Volume &volume)
{
    const adit::File file = volume.open_file("/queued", ADIT_O_RDWR | ADIT_O_CREAT).value();
    const adit::Queue queue = volume.queue().value();
    char data[4096] = "queued", back[4096];
    int called = 0;
    adit_completion completions[4];
    OK(queue.submit(adit::Queue::write(file, data, sizeof(data), 0, &called, count_up)));
    OK(queue.submit(adit::Queue::append(file, data, 6, &called, count_up)));
    OK(queue.submit(adit::Queue::fsync(file, &called, count_up)));
    OK(queue.submit(adit::Queue::fdatasync(file, &called, count_up)));
    HOLDS(queue.run(4, 4).value() == 4 && called == 4);
    HOLDS(queue.run(1, 4, std::chrono::milliseconds(1)).value() == 0);
    OK(queue.submit(adit::Queue::read(file, back, sizeof(back), 0, back)));
    HOLDS(queue.wait(completions, 1, 4).value() == 1);
    HOLDS(completions[0].user_data == back && completions[0].result == sizeof(back));
    HOLDS(back[0] == 'q' && queue.pending().value() == 0);
    OK(queue.post(data, 5));
    HOLDS(queue.wait(completions, 1, 4, std::chrono::hours(1)).value() == 1);
    HOLDS(completions[0].user_data == data && completions[0].result == 5);
    HOLDS(queue.eventfd().value() >= 0);
    FAILS(EINVAL, adit::Queue().submit(adit::Queue::fsync(file, nullptr)));
    FAILS(EINVAL, queue.submit(adit::Queue::fsync(adit::File(), nullptr)));
    OK(volume.unlink("/queued"));
}

static void a_volume_tells_of_itself(const adit::Volume &volume)
{
    const adit_info info = volume.info().value();
    HOLDS(info.volume_bytes >= info.free_bytes && info.cache_bytes > 0 && info.blobs >= 1);
    HOLDS(volume.text(ADIT_TEXT_LABEL).value().empty());
    HOLDS(!volume.text(ADIT_TEXT_ADDRESS).value().empty());
    FAILS(EINVAL, volume.text(99));
    FAILS(EINVAL, volume.grow(4096));
    int told = 0;
    const auto count = [&](const adit_finding &) { ++told; };
    HOLDS(volume.check(count).value().findings == 0 && told == 0);
    const adit_scrub_result scrubbed = volume.scrub(count).value();
    HOLDS(scrubbed.findings == 0 && told == 0);
    HOLDS(volume.check().value().directories >= 1);
}

int main(int argc, char **argv)
{
    limit_time();
    const std::string address = argc > 1 ? argv[1] : "mem:128M";
    {
        const adit::Volume volume = opened(address);
        errors_have_a_code_a_text_and_an_exception(volume);
        a_volume_describes_itself(volume);
        files_read_and_write(volume);
        operations_are_submitted(volume);
        names_change(volume);
        attributes_change(volume);
        locks_exclude(volume);
        blobs_keep_pages(volume);
        a_queue_takes_completions_of_any(volume);
        a_volume_tells_of_itself(volume);
        a_forked_child_has_dead_objects(volume);
    }
    if (address.rfind("mem:", 0) != 0 && address.rfind("unix:", 0) != 0) {
        the_last_of_a_volume_closes_it(address);
        a_users_handle_keeps_the_volume_open(address);
    }
    what_is_closed_or_moved_from_answers_einval();
    a_user_has_its_own_rights();
    std::printf("%d claims hold\n", claims.load());
    return 0;
}
