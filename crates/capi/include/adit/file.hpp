/*
 * A file, and memory of Adit's. Each function is the one of adit.h with that name: what it does,
 * its errors and its limits are described there.
 */
#ifndef ADIT_FILE_HPP
#define ADIT_FILE_HPP

#include "future.hpp"
#include "result.hpp"

#include <string>
#include <vector>

namespace adit {
namespace detail {

/* All of a value whose length is asked for first: fill(memory, len) answers the length. */
template <class Fill>
Result<std::string> whole(Fill fill)
{
    std::string value;
    for (;;) {
        const std::int64_t needed = fill(value.data(), value.size());
        /* It may grow between the two calls. */
        if (needed < 0 && needed != -ERANGE)
            return Fault::of(needed);
        if (needed >= 0 && static_cast<std::size_t>(needed) <= value.size()) {
            value.resize(static_cast<std::size_t>(needed));
            return value;
        }
        const std::int64_t asked = needed == -ERANGE ? fill(nullptr, 0) : needed;
        if (asked < 0)
            return Fault::of(asked);
        value.resize(static_cast<std::size_t>(asked));
    }
}

/* Names that each end with a zero. */
inline Result<std::vector<std::string>> names_of(const Result<std::string> &list)
{
    if (!list)
        return list.fault();
    std::vector<std::string> names;
    const std::string &bytes = list.value();
    for (std::size_t at = 0; at < bytes.size();) {
        names.emplace_back(bytes.c_str() + at);
        at += names.back().size() + 1;
    }
    return names;
}

} // namespace detail

/* Memory of Adit's, from Volume::allocate or File::pread_borrow (then it is read-only). */
class Buffer {
public:
    Buffer() noexcept = default;
    Buffer(const adit_buffer &raw, detail::CoreReference core) noexcept
        : raw_(raw), core_(std::move(core))
    {
    }

    Buffer(Buffer &&other) noexcept
        : raw_(std::exchange(other.raw_, adit_buffer{})), core_(std::move(other.core_))
    {
    }

    Buffer &operator=(Buffer &&other) noexcept
    {
        if (this != &other) {
            release();
            raw_ = std::exchange(other.raw_, adit_buffer{});
            core_ = std::move(other.core_);
        }
        return *this;
    }

    ~Buffer() { release(); }

    char *data() noexcept { return static_cast<char *>(raw_.data); }
    const char *data() const noexcept { return static_cast<const char *>(raw_.data); }
    std::size_t size() const noexcept { return raw_.len; }

    void release() noexcept
    {
        if (core_ != nullptr)
            adit_buffer_release(&raw_);
        raw_ = adit_buffer{};
        core_.reset();
    }

private:
    adit_buffer raw_{};
    detail::CoreReference core_;
};

/* An open file, or a directory opened for fsync or locks; from Volume::open. */
class File {
public:
    File() noexcept = default;
    File(adit_file *raw, detail::CoreReference core) noexcept : owned_(raw, std::move(core)) {}

    bool is_open() const noexcept { return raw() != nullptr; }

    /* For functions of adit.h; NULL if it is not open. */
    adit_file *raw() const noexcept { return owned_.raw(); }

    Result<void> close() { return owned_.close(); }

    /* ------------------------------------------------------------------------ read and write */

    Result<std::size_t> pread(void *data, std::size_t len, std::uint64_t offset) const
    {
        return bytes(adit_pread(raw(), data, len, offset));
    }

    Result<std::size_t> preadv(const iovec *vector, int count, std::uint64_t offset) const
    {
        return bytes(adit_preadv(raw(), vector, count, offset));
    }

    /* Success when every request has its result, which may be an error. */
    Result<void> pread_many(adit_read_request *requests, std::size_t count) const
    {
        return nothing(adit_pread_many(raw(), requests, count));
    }

    Result<Buffer> pread_borrow(std::size_t len, std::uint64_t offset) const
    {
        adit_buffer buffer{};
        const std::int64_t got = adit_pread_borrow(raw(), len, offset, &buffer);
        if (got < 0)
            return Fault::of(got);
        return Buffer(buffer, owned_.core());
    }

    Result<std::size_t> pwrite(const void *data, std::size_t len, std::uint64_t offset) const
    {
        return bytes(adit_pwrite(raw(), data, len, offset));
    }

    Result<std::size_t> pwritev(const iovec *vector, int count, std::uint64_t offset,
                                unsigned flags = 0) const
    {
        return bytes(adit_pwritev(raw(), vector, count, offset, flags));
    }

    /* Returns the offset of the data. */
    Result<std::uint64_t> append(const void *data, std::size_t len) const
    {
        std::uint64_t offset = 0;
        const std::int64_t appended = adit_append(raw(), data, len, &offset);
        if (appended < 0)
            return Fault::of(appended);
        return offset;
    }

    Result<std::uint64_t> appendv(const iovec *vector, int count, unsigned flags = 0) const
    {
        std::uint64_t offset = 0;
        const std::int64_t appended = adit_appendv(raw(), vector, count, flags, &offset);
        if (appended < 0)
            return Fault::of(appended);
        return offset;
    }

    Result<void> pwrite_atomic(const adit_write_range *ranges, std::size_t count,
                               unsigned flags = 0) const
    {
        return nothing(adit_pwrite_atomic(raw(), ranges, count, flags));
    }

    Result<std::uint64_t> atomic_write_max() const
    {
        return number(adit_atomic_write_max(raw()));
    }

    /* Returns the number of bytes copied, which may be fewer than len. */
    Result<std::uint64_t> copy_range(std::uint64_t offset, const File &to, std::uint64_t to_offset,
                                     std::uint64_t len) const
    {
        return number(adit_copy_range(raw(), offset, to.raw(), to_offset, len));
    }

    /* -------------------------------------------------------------------------- asynchronous
     *
     * The memory is the operation's until the future is done. A submission that fails gives a
     * future that is done with the error. */

    Future<std::size_t> pread_async(void *data, std::size_t len, std::uint64_t offset,
                                    bool polling = false) const
    {
        return start<std::size_t>(polling, [&](adit_op **op) {
            return adit_pread_submit(raw(), data, len, offset, nullptr, nullptr, op);
        });
    }

    Future<std::size_t> pwrite_async(const void *data, std::size_t len, std::uint64_t offset,
                                     bool polling = false) const
    {
        return start<std::size_t>(polling, [&](adit_op **op) {
            return adit_pwrite_submit(raw(), data, len, offset, nullptr, nullptr, op);
        });
    }

    /* Its result is the offset of the data. */
    Future<std::uint64_t> append_async(const void *data, std::size_t len,
                                       bool polling = false) const
    {
        return start<std::uint64_t>(polling, [&](adit_op **op) {
            return adit_append_submit(raw(), data, len, nullptr, nullptr, op);
        });
    }

    Future<void> fsync_async(bool polling = false) const
    {
        return start<void>(polling, [&](adit_op **op) {
            return adit_fsync_submit(raw(), nullptr, nullptr, op);
        });
    }

    Future<void> fdatasync_async(bool polling = false) const
    {
        return start<void>(polling, [&](adit_op **op) {
            return adit_fdatasync_submit(raw(), nullptr, nullptr, op);
        });
    }

    /* ------------------------------------------------------------------------ sync and space */

    Result<void> fsync() const { return nothing(adit_fsync(raw())); }
    Result<void> fdatasync() const { return nothing(adit_fdatasync(raw())); }
    Result<void> start_write_back() const { return nothing(adit_start_write_back(raw())); }

    Result<void> truncate(std::uint64_t size) const
    {
        return nothing(adit_ftruncate(raw(), size));
    }

    Result<void> fallocate(unsigned mode, std::uint64_t offset, std::uint64_t len) const
    {
        return nothing(adit_fallocate(raw(), mode, offset, len));
    }

    Result<std::uint64_t> next_data(std::uint64_t offset) const
    {
        return number(adit_next_data(raw(), offset));
    }

    Result<std::uint64_t> next_hole(std::uint64_t offset) const
    {
        return number(adit_next_hole(raw(), offset));
    }

    /* adit_map_shared: valid as long as the file is open. */
    Result<void *> map_shared(std::uint64_t offset, std::size_t len) const
    {
        void *memory = nullptr;
        const int done = adit_map_shared(raw(), offset, len, &memory);
        if (done < 0)
            return Fault::of(done);
        return memory;
    }

    Result<std::uint64_t> size() const { return number(adit_file_size(raw())); }

    Result<adit_stat> stat() const
    {
        adit_stat stat = ADIT_STAT_INIT;
        const int done = adit_fstat(raw(), &stat);
        if (done < 0)
            return Fault::of(done);
        return stat;
    }

    /* --------------------------------------------------------------------------------- locks */

    Result<void> flock(int operation) const { return nothing(adit_flock(raw(), operation)); }

    Result<void> lock_range(const adit_range_lock &lock) const
    {
        return nothing(adit_lock_range(raw(), &lock));
    }

    /* A lock that conflicts with this one, if there is one. */
    Result<std::optional<adit_range_lock>> test_lock(const adit_range_lock &lock) const
    {
        adit_range_lock blocker{};
        const int conflicts = adit_test_lock(raw(), &lock, &blocker);
        if (conflicts < 0)
            return Fault::of(conflicts);
        return conflicts == 1 ? std::optional<adit_range_lock>(blocker) : std::nullopt;
    }

    Result<void> release_locks(std::uint64_t owner) const
    {
        return nothing(adit_release_locks(raw(), owner));
    }

    /* ---------------------------------------------------------------------------- attributes */

    Result<void> chmod(unsigned mode) const { return nothing(adit_fchmod(raw(), mode)); }

    Result<void> chown(std::uint32_t uid, std::uint32_t gid) const
    {
        return nothing(adit_fchown(raw(), uid, gid));
    }

    /* Two times, or NULL for now. */
    Result<void> utimens(const adit_time *times) const
    {
        return nothing(adit_futimens(raw(), times));
    }

    Result<void> set_xattr(Text name, const void *value, std::size_t len, unsigned flags = 0) const
    {
        return nothing(adit_fset_xattr(raw(), name.get(), value, len, flags));
    }

    Result<std::string> get_xattr(Text name) const
    {
        return detail::whole([&](void *value, std::size_t len) {
            return adit_fget_xattr(raw(), name.get(), value, len);
        });
    }

    Result<void> remove_xattr(Text name) const
    {
        return nothing(adit_fremove_xattr(raw(), name.get()));
    }

    Result<std::vector<std::string>> list_xattrs() const
    {
        return detail::names_of(detail::whole([&](char *names, std::size_t len) {
            return adit_flist_xattrs(raw(), names, len);
        }));
    }

private:
    static Result<void> nothing(int result) { return detail::to_result<void>(result); }

    static Result<std::size_t> bytes(std::int64_t result)
    {
        return detail::to_result<std::size_t>(result);
    }

    static Result<std::uint64_t> number(std::int64_t result)
    {
        return detail::to_result<std::uint64_t>(result);
    }

    template <class T, class Submit>
    Future<T> start(bool polling, Submit submit) const
    {
        return Future<T>(FutureBase::start(owned_.core(), polling, submit));
    }

    detail::Owned<adit_file, adit_close> owned_;
};

} // namespace adit

#endif /* ADIT_FILE_HPP */
