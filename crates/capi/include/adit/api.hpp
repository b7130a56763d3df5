/*
 * POSIX-like calls on descriptors: ApiBase, with two forms. A program written for ApiBase runs with
 * either.
 *
 *              a call (pread ...)             a future (pread_async ...)
 *   SyncApi    done by the calling thread     done before the call returns
 *   AsyncApi   the same                       in flight after the call
 *
 * `polling` chooses how a thread waits. false: Adit's blocking call, which takes shortcuts for
 * cached data and direct reads, and sleeps after a short spin. true: the operation is submitted and
 * polled, and the thread never sleeps; this costs a processor and the shortcuts
 * (docs/using/cpp.md has numbers).
 *
 * Flags, modes and struct stat are those of the system's headers (O_RDWR, FALLOC_FL_KEEP_SIZE,
 * SEEK_DATA ...). A flag without a meaning in Adit is EINVAL; O_CLOEXEC, O_NOCTTY and O_NONBLOCK
 * have no effect. Descriptors begin at 3 and are not those of the kernel.
 *
 * Threads: any thread may call at any time, but a descriptor is closed only when no other call on
 * it is running; futures may be running. read, write and lseek of one descriptor take turns.
 *
 * Invariant: slots_[i] is not null exactly while descriptor i + FIRST is open.
 */
#ifndef ADIT_API_HPP
#define ADIT_API_HPP

#include "file.hpp"
#include "future.hpp"
#include "volume.hpp"

#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

namespace adit {
namespace detail {

/* Flags of <fcntl.h> as ADIT_O_...; none if there is one that Adit doesn't have. */
inline std::optional<unsigned> open_flags_of(int flags)
{
    struct Pair {
        int theirs;
        unsigned ours;
    };
    /* O_SYNC has the bits of O_DSYNC, so it comes first. */
    static constexpr Pair PAIRS[] = {
        {O_CREAT, ADIT_O_CREAT},         {O_EXCL, ADIT_O_EXCL},
        {O_TRUNC, ADIT_O_TRUNC},         {O_APPEND, ADIT_O_APPEND},
        {O_SYNC, ADIT_O_SYNC},           {O_DSYNC, ADIT_O_DSYNC},
        {O_DIRECTORY, ADIT_O_DIRECTORY}, {O_NOFOLLOW, ADIT_O_NOFOLLOW},
#ifdef O_DIRECT
        {O_DIRECT, ADIT_O_DIRECT},
#endif
#ifdef O_PATH
        {O_PATH, ADIT_O_PATH},
#endif
#ifdef O_NOATIME
        {O_NOATIME, ADIT_O_NOATIME},
#endif
    };
    unsigned translated = 0;
    switch (flags & O_ACCMODE) {
    case O_RDONLY: translated = ADIT_O_RDONLY; break;
    case O_WRONLY: translated = ADIT_O_WRONLY; break;
    case O_RDWR: translated = ADIT_O_RDWR; break;
    default: return std::nullopt;
    }
    int rest = flags & ~(O_ACCMODE | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    for (const Pair &pair : PAIRS) {
        if ((rest & pair.theirs) == pair.theirs) {
            translated |= pair.ours;
            rest &= ~pair.theirs;
        }
    }
#ifdef O_LARGEFILE
    rest &= ~O_LARGEFILE;
#endif
    return rest == 0 ? std::optional<unsigned>(translated) : std::nullopt;
}

inline std::optional<unsigned> fallocate_mode_of(int mode)
{
    if ((mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0)
        return std::nullopt;
    return ((mode & FALLOC_FL_KEEP_SIZE) != 0 ? ADIT_FALLOC_KEEP_SIZE : 0u) |
           ((mode & FALLOC_FL_PUNCH_HOLE) != 0 ? ADIT_FALLOC_PUNCH_HOLE : 0u) |
           ((mode & FALLOC_FL_ZERO_RANGE) != 0 ? ADIT_FALLOC_ZERO_RANGE : 0u);
}

inline timespec timespec_of(const adit_time &time)
{
    timespec converted{};
    converted.tv_sec = static_cast<time_t>(time.seconds);
    converted.tv_nsec = static_cast<long>(time.nanoseconds);
    return converted;
}

inline void fill_stat(const adit_stat &from, struct ::stat &to)
{
    std::memset(&to, 0, sizeof(to));
    to.st_ino = from.ino;
    to.st_mode = from.mode;
    to.st_nlink = from.nlink;
    to.st_uid = from.uid;
    to.st_gid = from.gid;
    to.st_rdev = from.rdev;
    to.st_size = static_cast<off_t>(from.size_bytes);
    to.st_blksize = 4096;
    to.st_blocks = static_cast<blkcnt_t>(from.allocated_bytes / 512);
    to.st_atim = timespec_of(from.atime);
    to.st_mtim = timespec_of(from.mtime);
    to.st_ctim = timespec_of(from.ctime);
}

} // namespace detail

struct ApiOptions {
    std::size_t descriptors_max = 1024; /* open at a time: more is EMFILE */
    std::size_t futures_max = 128;      /* that exist at a time: more is EAGAIN */
};

class ApiBase {
public:
    /* Keeps the volume open. */
    explicit ApiBase(const Volume &volume, const ApiOptions &options = ApiOptions())
        : volume_(volume.share()), slots_(options.descriptors_max), futures_(options.futures_max)
    {
    }

    ApiBase(const ApiBase &) = delete;
    ApiBase &operator=(const ApiBase &) = delete;

    /* Closes what is open. */
    virtual ~ApiBase()
    {
        for (Slot &slot : slots_)
            delete slot.load();
    }

    const Volume &volume() const noexcept { return volume_; }

    /* ------------------------------------------------------------------------------- futures
     *
     * The memory is the operation's until the future is done. EAGAIN while futures_max of them
     * exist; EBADF and EINVAL for bad arguments; all other errors are in the future. */

    Result<FuturePointer> pread_async(int descriptor, void *data, std::size_t len, off_t offset,
                                      bool polling = false)
    {
        return submit(descriptor, offset, [&](const File &file) {
            return file.pread_async(data, len, static_cast<std::uint64_t>(offset), polling);
        });
    }

    Result<FuturePointer> pwrite_async(int descriptor, const void *data, std::size_t len,
                                       off_t offset, bool polling = false)
    {
        return submit(descriptor, offset, [&](const File &file) {
            return file.pwrite_async(data, len, static_cast<std::uint64_t>(offset), polling);
        });
    }

    /* Its result is the offset of the data. */
    Result<FuturePointer> append_async(int descriptor, const void *data, std::size_t len,
                                       bool polling = false)
    {
        return submit(descriptor, 0, [&](const File &file) {
            return file.append_async(data, len, polling);
        });
    }

    Result<FuturePointer> fsync_async(int descriptor, bool polling = false)
    {
        return submit(descriptor, 0, [&](const File &file) { return file.fsync_async(polling); });
    }

    Result<FuturePointer> fdatasync_async(int descriptor, bool polling = false)
    {
        return submit(descriptor, 0,
                      [&](const File &file) { return file.fdatasync_async(polling); });
    }

    /* --------------------------------------------------------------------------- descriptors */

    /* EMFILE while descriptors_max are open. */
    Result<int> open(Text path, int flags, mode_t mode = 0600)
    {
        const std::optional<unsigned> translated = detail::open_flags_of(flags);
        if (!translated)
            return Fault(EINVAL, "open a file with a flag that Adit doesn't have");
        Result<File> file = volume_.open_file(path, *translated, mode);
        if (!file)
            return file.fault();
        auto opened = std::make_unique<Descriptor>(std::move(file).value());
        opened->appends = (flags & O_APPEND) != 0;
        const std::lock_guard<std::mutex> guard(open_and_close_);
        for (std::size_t at = 0; at < slots_.size(); ++at) {
            if (slots_[at].load(std::memory_order_relaxed) == nullptr) {
                slots_[at].store(opened.release(), std::memory_order_release);
                return static_cast<int>(at) + FIRST;
            }
        }
        return Fault(EMFILE, "open a file: descriptors_max of this API are open");
    }

    Result<void> close(int descriptor)
    {
        std::unique_ptr<Descriptor> closed;
        {
            const std::lock_guard<std::mutex> guard(open_and_close_);
            if (Slot *slot = slot_of(descriptor))
                closed.reset(slot->exchange(nullptr));
        }
        return closed == nullptr ? bad_descriptor() : closed->file.close();
    }

    /* The file behind a descriptor, for calls that are only there; valid until the close. NULL if
     * the descriptor is not open. */
    const File *file(int descriptor) const noexcept
    {
        const Descriptor *open = find(descriptor);
        return open == nullptr ? nullptr : &open->file;
    }

    /* ------------------------------------------------------------------------ read and write */

    Result<std::size_t> pread(int descriptor, void *data, std::size_t len, off_t offset,
                              bool polling = false)
    {
        const Result<const File *> file = file_at(descriptor, offset);
        if (!file)
            return file.fault();
        return pread_file(*file.value(), data, len, static_cast<std::uint64_t>(offset), polling);
    }

    Result<std::size_t> pwrite(int descriptor, const void *data, std::size_t len, off_t offset,
                               bool polling = false)
    {
        const Result<const File *> file = file_at(descriptor, offset);
        if (!file)
            return file.fault();
        return pwrite_file(*file.value(), data, len, static_cast<std::uint64_t>(offset), polling);
    }

    /* At the descriptor's position, which moves on by what was read. */
    Result<std::size_t> read(int descriptor, void *data, std::size_t len, bool polling = false)
    {
        Descriptor *open = find(descriptor);
        if (open == nullptr)
            return bad_descriptor();
        const std::lock_guard<std::mutex> guard(open->turn);
        Result<std::size_t> done = pread_file(open->file, data, len, open->position, polling);
        if (done)
            open->position += done.value();
        return done;
    }

    /* At the descriptor's position, or with O_APPEND at the end; the position is then behind it. */
    Result<std::size_t> write(int descriptor, const void *data, std::size_t len,
                              bool polling = false)
    {
        Descriptor *open = find(descriptor);
        if (open == nullptr)
            return bad_descriptor();
        const std::lock_guard<std::mutex> guard(open->turn);
        if (!open->appends) {
            Result<std::size_t> done = pwrite_file(open->file, data, len, open->position, polling);
            if (done)
                open->position += done.value();
            return done;
        }
        const Result<std::uint64_t> at =
            polling ? open->file.append_async(data, len, true).get() : open->file.append(data, len);
        if (!at)
            return at.fault();
        open->position = at.value() + len;
        return len;
    }

    /* whence: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE. Returns the new position. */
    Result<off_t> lseek(int descriptor, off_t offset, int whence)
    {
        Descriptor *open = find(descriptor);
        if (open == nullptr)
            return bad_descriptor();
        const std::lock_guard<std::mutex> guard(open->turn);
        Result<std::uint64_t> base = std::uint64_t{0};
        bool adds = true;
        switch (whence) {
        case SEEK_SET: break;
        case SEEK_CUR: base = open->position; break;
        case SEEK_END: base = open->file.size(); break;
#ifdef SEEK_DATA
        case SEEK_DATA:
        case SEEK_HOLE:
            if (offset < 0)
                return Fault(ENXIO, "seek to a negative offset");
            adds = false;
            base = whence == SEEK_DATA ? open->file.next_data(static_cast<std::uint64_t>(offset))
                                       : open->file.next_hole(static_cast<std::uint64_t>(offset));
            break;
#endif
        default: return Fault(EINVAL, "seek: whence is none of SEEK_SET, CUR, END, DATA, HOLE");
        }
        if (!base)
            return base.fault();
        off_t position = static_cast<off_t>(base.value());
        if (adds && __builtin_add_overflow(position, offset, &position))
            return Fault(EOVERFLOW, "seek beyond the largest offset");
        if (position < 0)
            return Fault(EINVAL, "seek to a negative offset");
        open->position = static_cast<std::uint64_t>(position);
        return position;
    }

    Result<void> fsync(int descriptor, bool polling = false)
    {
        return on(descriptor, [&](const File &file) {
            return polling ? file.fsync_async(true).get() : file.fsync();
        });
    }

    Result<void> fdatasync(int descriptor, bool polling = false)
    {
        return on(descriptor, [&](const File &file) {
            return polling ? file.fdatasync_async(true).get() : file.fdatasync();
        });
    }

    Result<void> ftruncate(int descriptor, off_t size)
    {
        if (size < 0)
            return Fault(EINVAL, "truncate a file to a negative size");
        return on(descriptor, [&](const File &file) {
            return file.truncate(static_cast<std::uint64_t>(size));
        });
    }

    /* mode: 0 or FALLOC_FL_KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE; others are EOPNOTSUPP. */
    Result<void> fallocate(int descriptor, int mode, off_t offset, off_t len)
    {
        const std::optional<unsigned> translated = detail::fallocate_mode_of(mode);
        if (!translated)
            return Fault(EOPNOTSUPP, "fallocate with a mode that Adit doesn't have");
        if (offset < 0 || len <= 0)
            return Fault(EINVAL, "fallocate a range that is negative or empty");
        return on(descriptor, [&](const File &file) {
            return file.fallocate(*translated, static_cast<std::uint64_t>(offset),
                                  static_cast<std::uint64_t>(len));
        });
    }

    Result<void> fstat(int descriptor, struct ::stat *result)
    {
        return on(descriptor, [&](const File &file) { return filled(file.stat(), result); });
    }

    /* operation: LOCK_... of <sys/file.h>, which have the numbers of ADIT_LOCK_... */
    Result<void> flock(int descriptor, int operation)
    {
        return on(descriptor, [&](const File &file) {
            static_assert(ADIT_LOCK_SHARED == 1 && ADIT_LOCK_EXCLUSIVE == 2 &&
                              ADIT_LOCK_NONBLOCKING == 4 && ADIT_LOCK_UNLOCK == 8,
                          "as in <sys/file.h>");
            return file.flock(operation);
        });
    }

    /* --------------------------------------------------------------------------------- names */

    Result<void> stat(Text path, struct ::stat *result)
    {
        return filled(volume_.stat(path), result);
    }

    Result<void> lstat(Text path, struct ::stat *result)
    {
        return filled(volume_.lstat(path), result);
    }

    Result<void> truncate(Text path, off_t size)
    {
        if (size < 0)
            return Fault(EINVAL, "truncate a file to a negative size");
        return volume_.truncate(path, static_cast<std::uint64_t>(size));
    }

    Result<void> unlink(Text path) { return volume_.unlink(path); }
    Result<void> rename(Text from, Text to) { return volume_.rename(from, to); }
    Result<void> link(Text existing, Text path) { return volume_.link(existing, path); }
    Result<void> symlink(Text target, Text path) { return volume_.symlink(target, path); }
    Result<std::string> readlink(Text path) { return volume_.readlink(path); }
    Result<void> mkdir(Text path, mode_t mode) { return volume_.mkdir(path, mode); }
    Result<void> rmdir(Text path) { return volume_.rmdir(path); }
    Result<void> chmod(Text path, mode_t mode) { return volume_.chmod(path, mode); }

    /* wanted: F_OK, or R_OK, W_OK and X_OK, which have the numbers of ADIT_R_OK ... */
    Result<void> access(Text path, int wanted)
    {
        static_assert(ADIT_X_OK == X_OK && ADIT_W_OK == W_OK && ADIT_R_OK == R_OK,
                      "as in <unistd.h>");
        return volume_.access(path, static_cast<unsigned>(wanted));
    }

    Result<Directory> opendir(Text path) { return volume_.open_directory(path); }

    /* Everything on the volume. */
    Result<void> syncfs() { return volume_.syncfs(); }

    const FuturePool &futures() const noexcept { return futures_; }

    /* The number of the first descriptor: 0 to 2 mean something else in most programs. */
    static constexpr int FIRST = 3;

protected:
    /* What becomes of a future before the caller gets it. */
    virtual void submitted(FutureBase &future) = 0;

private:
    struct Descriptor {
        explicit Descriptor(File opened) : file(std::move(opened)) {}

        File file;
        std::mutex turn;
        std::uint64_t position = 0;
        bool appends = false;
    };

    using Slot = std::atomic<Descriptor *>;

    static Fault bad_descriptor()
    {
        return Fault(EBADF, "use a descriptor that this API did not open");
    }

    Slot *slot_of(int descriptor) noexcept
    {
        const bool is_one = descriptor >= FIRST &&
                            static_cast<std::size_t>(descriptor - FIRST) < slots_.size();
        return is_one ? &slots_[static_cast<std::size_t>(descriptor - FIRST)] : nullptr;
    }

    Descriptor *find(int descriptor) noexcept
    {
        Slot *slot = slot_of(descriptor);
        return slot == nullptr ? nullptr : slot->load(std::memory_order_acquire);
    }

    const Descriptor *find(int descriptor) const noexcept
    {
        return const_cast<ApiBase *>(this)->find(descriptor);
    }

    Result<const File *> file_at(int descriptor, off_t offset)
    {
        const Descriptor *open = find(descriptor);
        if (open == nullptr)
            return bad_descriptor();
        if (offset < 0)
            return Fault(EINVAL, "use a negative offset");
        return &open->file;
    }

    template <class Operation>
    Result<FuturePointer> submit(int descriptor, off_t offset, Operation operation)
    {
        const Result<const File *> file = file_at(descriptor, offset);
        if (!file)
            return file.fault();
        Result<FuturePointer> future = futures_.take();
        if (future) {
            *future.value() = operation(*file.value());
            submitted(*future.value());
        }
        return future;
    }

    template <class Operation>
    Result<void> on(int descriptor, Operation operation)
    {
        const Descriptor *open = find(descriptor);
        if (open == nullptr)
            return bad_descriptor();
        return operation(open->file);
    }

    static Result<std::size_t> pread_file(const File &file, void *data, std::size_t len,
                                          std::uint64_t offset, bool polling)
    {
        return polling ? file.pread_async(data, len, offset, true).get()
                       : file.pread(data, len, offset);
    }

    static Result<std::size_t> pwrite_file(const File &file, const void *data, std::size_t len,
                                           std::uint64_t offset, bool polling)
    {
        return polling ? file.pwrite_async(data, len, offset, true).get()
                       : file.pwrite(data, len, offset);
    }

    static Result<void> filled(const Result<adit_stat> &stat, struct ::stat *result)
    {
        if (!stat)
            return stat.fault();
        if (result == nullptr)
            return Fault(EFAULT, "return a result to NULL");
        detail::fill_stat(stat.value(), *result);
        return {};
    }

    Volume volume_;
    std::mutex open_and_close_;
    std::vector<Slot> slots_;
    FuturePool futures_;
};

/* The calling thread does each operation; its futures are done when it gets them. */
class SyncApi final : public ApiBase {
public:
    using ApiBase::ApiBase;

private:
    void submitted(FutureBase &future) override { future.wait(); }
};

/* Futures are in flight when the caller gets them. */
class AsyncApi final : public ApiBase {
public:
    using ApiBase::ApiBase;

private:
    void submitted(FutureBase &) override {}
};

} // namespace adit

#endif /* ADIT_API_HPP */
