/*
 * A volume with its names, a directory being read, and blobs. Each function is the one of adit.h
 * with that name: what it does, its errors and its limits are described there.
 */
#ifndef ADIT_VOLUME_HPP
#define ADIT_VOLUME_HPP

#include "file.hpp"
#include "queue.hpp"
#include "result.hpp"

#include <exception>
#include <functional>

#include <string>
#include <vector>

namespace adit {

/* The library's version, like "0.1.0". */
inline const char *version() noexcept { return adit_version(); }

/* Major * 1000 + minor of the interface that the library implements. */
inline int api_version() noexcept { return adit_api_version(); }

inline Result<void> set_log(adit_log callback, void *user_data, int level)
{
    return detail::to_result<void>(adit_set_log(callback, user_data, level));
}

/* Formats a volume. */
inline Result<void> mkfs(Text address, const adit_mkfs_options &options = ADIT_MKFS_OPTIONS_INIT)
{
    return detail::to_result<void>(adit_mkfs(address.get(), &options));
}

/* The defaults, changed as the environment says (ADIT_CACHE ...). */
inline Result<adit_open_options> options_from_environment()
{
    adit_open_options options = ADIT_OPEN_OPTIONS_INIT;
    const int done = adit_options_from_environment(&options);
    if (done < 0)
        return Fault::of(done);
    return options;
}

/* A directory being read; belongs to one thread at a time. */
class Directory {
public:
    Directory() noexcept = default;
    Directory(adit_dir *raw, detail::CoreReference core) noexcept : owned_(raw, std::move(core)) {}

    adit_dir *raw() const noexcept { return owned_.raw(); }

    /* True and the next entry, or false at the end. Its name is valid until the next call. */
    Result<bool> next(adit_dirent &entry)
    {
        return detail::to_result<bool>(adit_readdir(raw(), &entry));
    }

    /* Continues after the entry with that cookie; 0 starts again. */
    Result<void> seek(std::uint64_t cookie)
    {
        return detail::to_result<void>(adit_seekdir(raw(), cookie));
    }

    Result<void> close() { return owned_.close(); }

private:
    detail::Owned<adit_dir, adit_closedir> owned_;
};

/* An open blob: an array of pages without a name. */
class Blob {
public:
    Blob() noexcept = default;
    Blob(adit_blob *raw, detail::CoreReference core) noexcept : owned_(raw, std::move(core)) {}

    adit_blob *raw() const noexcept { return owned_.raw(); }

    Result<std::uint64_t> size() const
    {
        return detail::to_result<std::uint64_t>(adit_blob_size(raw()));
    }

    Result<void> resize(std::uint64_t size) const
    {
        return detail::to_result<void>(adit_blob_resize(raw(), size));
    }

    Result<std::size_t> read(void *data, std::size_t len, std::uint64_t offset) const
    {
        return detail::to_result<std::size_t>(adit_blob_read(raw(), data, len, offset));
    }

    Result<std::size_t> write(const void *data, std::size_t len, std::uint64_t offset) const
    {
        return detail::to_result<std::size_t>(adit_blob_write(raw(), data, len, offset));
    }

    Result<void> sync() const { return detail::to_result<void>(adit_blob_sync(raw())); }

    Result<void> set_xattr(Text name, const void *value, std::size_t len) const
    {
        return detail::to_result<void>(adit_blob_set_xattr(raw(), name.get(), value, len));
    }

    Result<std::string> get_xattr(Text name) const
    {
        return detail::whole([&](void *value, std::size_t len) {
            return adit_blob_get_xattr(raw(), name.get(), value, len);
        });
    }

    Result<void> remove_xattr(Text name) const
    {
        return detail::to_result<void>(adit_blob_remove_xattr(raw(), name.get()));
    }

    Result<std::vector<std::string>> list_xattrs() const
    {
        return detail::names_of(detail::whole([&](char *names, std::size_t len) {
            return adit_blob_list_xattrs(raw(), names, len);
        }));
    }

    Result<void> close() { return owned_.close(); }

private:
    detail::Owned<adit_blob, adit_blob_close> owned_;
};

/* An open volume. */
class Volume {
public:
    Volume() noexcept = default;
    Volume(Volume &&) noexcept = default;
    Volume &operator=(Volume &&) noexcept = default;

    /* `address`: a path, or mem:SIZE. */
    static Result<Volume> open(Text address,
                               const adit_open_options &options = ADIT_OPEN_OPTIONS_INIT)
    {
        adit_volume *opened = nullptr;
        const int done = adit_open_volume(address.get(), &options, &opened);
        return of(done, opened, nullptr);
    }

    /* The same volume with the rights of a user. */
    Result<Volume> on_behalf_of(std::uint32_t uid, std::uint32_t gid,
                                const std::vector<std::uint32_t> &groups = {}) const
    {
        adit_volume *user = nullptr;
        const int done = adit_on_behalf_of(raw(), uid, gid, groups.data(), groups.size(), &user);
        return of(done, user, core_);
    }

    bool is_open() const noexcept { return raw() != nullptr; }

    /* For functions of adit.h; NULL if it is not open. */
    adit_volume *raw() const noexcept { return detail::volume_of(core_); }

    /* Makes everything durable and closes. EBUSY, without any effect, while files, directories,
     * blobs or operations are open. After any other error it is closed nevertheless. */
    Result<void> close()
    {
        const int closed = adit_close_volume(raw());
        Result<void> result = detail::to_result<void>(closed);
        if (closed != -EBUSY && core_ != nullptr) {
            core_->volume = nullptr;
            core_.reset();
        }
        return result;
    }

    /* Another handle on the volume, which keeps it open. */
    Volume share() const { return Volume(core_); }

    Result<bool> survives() const
    {
        return detail::to_result<bool>(adit_volume_survives(raw()));
    }

    Result<bool> is_connected() const
    {
        return detail::to_result<bool>(adit_volume_is_connected(raw()));
    }

    Result<adit_statfs> statfs() const
    {
        adit_statfs statfs = ADIT_STATFS_INIT;
        const int done = adit_volume_statfs(raw(), &statfs);
        if (done < 0)
            return Fault::of(done);
        return statfs;
    }

    Result<void> syncfs() const { return nothing(adit_syncfs(raw())); }

    /* Figures of the volume; text() has what isn't a number. */
    Result<adit_info> info() const
    {
        adit_info info = ADIT_INFO_INIT;
        const int done = adit_volume_info(raw(), &info);
        if (done < 0)
            return Fault::of(done);
        return info;
    }

    /* which: ADIT_TEXT_... */
    Result<std::string> text(int which) const
    {
        return detail::whole([&](char *text, std::size_t len) {
            return adit_volume_text(raw(), which, text, len);
        });
    }

    Result<void> grow(std::uint64_t size_bytes) const
    {
        return nothing(adit_grow(raw(), size_bytes));
    }

    /* Checks all metadata; with a callback for each finding, if wanted. */
    Result<adit_check_result> check(const std::function<void(const adit_finding &)> &finding = {},
                                    adit_health_options options = ADIT_HEALTH_OPTIONS_INIT) const
    {
        adit_check_result result = ADIT_CHECK_RESULT_INIT;
        return examined(adit_check, finding, options, result);
    }

    /* The same, and reads all data. */
    Result<adit_scrub_result> scrub(const std::function<void(const adit_finding &)> &finding = {},
                                    adit_health_options options = ADIT_HEALTH_OPTIONS_INIT) const
    {
        adit_scrub_result result = ADIT_SCRUB_RESULT_INIT;
        return examined(adit_scrub, finding, options, result);
    }

    /* A queue of completions; keeps the volume open. */
    Result<Queue> queue(const adit_queue_options &options = ADIT_QUEUE_OPTIONS_INIT) const
    {
        adit_queue *queue = nullptr;
        const int done = adit_queue_create(raw(), &options, &queue);
        if (done < 0)
            return Fault::of(done);
        return Queue(queue, core_);
    }

    /* Memory that is aligned and fit for DMA. */
    Result<Buffer> allocate(std::size_t len) const
    {
        adit_buffer buffer{};
        const int done = adit_buffer_allocate(raw(), len, &buffer);
        if (done < 0)
            return Fault::of(done);
        return Buffer(buffer, core_);
    }

    /* --------------------------------------------------------------------------------- names */

    /* flags: ADIT_O_... */
    Result<File> open_file(Text path, unsigned flags, unsigned mode = 0644) const
    {
        adit_file *file = nullptr;
        const int done = adit_open(raw(), path.get(), flags, mode, &file);
        if (done < 0)
            return Fault::of(done);
        return File(file, core_);
    }

    /* Makes a small file durably; flags: ADIT_O_..., with EXCL or TRUNC and write access. */
    Result<File> create_and_sync(Text path, unsigned flags, const void *data, std::size_t len,
                                 unsigned mode = 0644) const
    {
        adit_file *file = nullptr;
        const int done =
            adit_create_and_sync(raw(), path.get(), flags, mode, data, len, &file);
        if (done < 0)
            return Fault::of(done);
        return File(file, core_);
    }

    Result<Directory> open_directory(Text path) const
    {
        adit_dir *directory = nullptr;
        const int done = adit_opendir(raw(), path.get(), &directory);
        if (done < 0)
            return Fault::of(done);
        return Directory(directory, core_);
    }

    Result<adit_stat> stat(Text path) const
    {
        adit_stat stat = ADIT_STAT_INIT;
        return stat_of(adit_stat_path(raw(), path.get(), &stat), stat);
    }

    Result<adit_stat> lstat(Text path) const
    {
        adit_stat stat = ADIT_STAT_INIT;
        return stat_of(adit_lstat_path(raw(), path.get(), &stat), stat);
    }

    Result<void> truncate(Text path, std::uint64_t size) const
    {
        return nothing(adit_truncate(raw(), path.get(), size));
    }

    Result<void> fsync_path(Text path) const { return nothing(adit_fsync_path(raw(), path.get())); }

    Result<void> link(Text existing, Text path) const
    {
        return nothing(adit_link(raw(), existing.get(), path.get()));
    }

    Result<void> unlink(Text path) const { return nothing(adit_unlink(raw(), path.get())); }

    /* flags: ADIT_RENAME_... */
    Result<void> rename(Text from, Text to, unsigned flags = 0) const
    {
        return nothing(adit_rename(raw(), from.get(), to.get(), flags));
    }

    Result<void> mkdir(Text path, unsigned mode = 0755) const
    {
        return nothing(adit_mkdir(raw(), path.get(), mode));
    }

    Result<void> rmdir(Text path) const { return nothing(adit_rmdir(raw(), path.get())); }

    Result<void> symlink(Text target, Text path) const
    {
        return nothing(adit_symlink(raw(), target.get(), path.get()));
    }

    Result<std::string> readlink(Text path) const
    {
        return detail::whole([&](char *target, std::size_t len) {
            return adit_readlink(raw(), path.get(), target, len);
        });
    }

    Result<void> mknod(Text path, unsigned mode, std::uint64_t device = 0) const
    {
        return nothing(adit_mknod(raw(), path.get(), mode, device));
    }

    /* ---------------------------------------------------------------------------- attributes
     *
     * flags: ADIT_NOFOLLOW or 0, and for set_xattr ADIT_XATTR_... */

    Result<void> access(Text path, unsigned wanted) const
    {
        return nothing(adit_access(raw(), path.get(), wanted));
    }

    Result<void> chmod(Text path, unsigned mode, unsigned flags = 0) const
    {
        return nothing(adit_chmod(raw(), path.get(), mode, flags));
    }

    Result<void> chown(Text path, std::uint32_t uid, std::uint32_t gid, unsigned flags = 0) const
    {
        return nothing(adit_chown(raw(), path.get(), uid, gid, flags));
    }

    /* Two times, or NULL for now. */
    Result<void> utimens(Text path, const adit_time *times, unsigned flags = 0) const
    {
        return nothing(adit_utimens(raw(), path.get(), times, flags));
    }

    Result<void> set_xattr(Text path, Text name, const void *value, std::size_t len,
                           unsigned flags = 0) const
    {
        return nothing(adit_set_xattr(raw(), path.get(), name.get(), value, len, flags));
    }

    Result<std::string> get_xattr(Text path, Text name, unsigned flags = 0) const
    {
        return detail::whole([&](void *value, std::size_t len) {
            return adit_get_xattr(raw(), path.get(), name.get(), value, len, flags);
        });
    }

    Result<void> remove_xattr(Text path, Text name, unsigned flags = 0) const
    {
        return nothing(adit_remove_xattr(raw(), path.get(), name.get(), flags));
    }

    Result<std::vector<std::string>> list_xattrs(Text path, unsigned flags = 0) const
    {
        return detail::names_of(detail::whole([&](char *names, std::size_t len) {
            return adit_list_xattrs(raw(), path.get(), names, len, flags);
        }));
    }

    /* --------------------------------------------------------------------------------- blobs */

    Result<adit_blob_id> create_blob() const
    {
        adit_blob_id id{};
        const int done = adit_blob_create(raw(), &id);
        if (done < 0)
            return Fault::of(done);
        return id;
    }

    Result<Blob> open_blob(const adit_blob_id &id) const
    {
        adit_blob *blob = nullptr;
        const int done = adit_blob_open(raw(), &id, &blob);
        if (done < 0)
            return Fault::of(done);
        return Blob(blob, core_);
    }

    Result<void> delete_blob(const adit_blob_id &id) const
    {
        return nothing(adit_blob_delete(raw(), &id));
    }

    /* True and the blob after `id` ({0, 0} at the beginning), or false after the last. */
    Result<bool> next_blob(adit_blob_id &id) const
    {
        return detail::to_result<bool>(adit_blob_next(raw(), &id));
    }

private:
    explicit Volume(detail::CoreReference core) noexcept : core_(std::move(core)) {}

    /* What a callback's finding leaves: an exception must not pass through the library. */
    struct Told {
        const std::function<void(const adit_finding &)> *finding;
#ifdef __cpp_exceptions
        std::exception_ptr thrown;
#endif

        static void tell(void *user_data, const adit_finding *finding)
        {
            auto *told = static_cast<Told *>(user_data);
#ifdef __cpp_exceptions
            try {
                if (!told->thrown)
                    (*told->finding)(*finding);
            } catch (...) {
                told->thrown = std::current_exception();
            }
#else
            (*told->finding)(*finding);
#endif
        }
    };

    /* With a std::function, the options' own callbacks and user_data are not used. */
    template <class Examine, class Outcome>
    Result<Outcome> examined(Examine examine,
                             const std::function<void(const adit_finding &)> &finding,
                             adit_health_options options, Outcome result) const
    {
        Told told{};
        told.finding = &finding;
        if (finding) {
            options.finding = Told::tell;
            options.progress = nullptr;
            options.user_data = &told;
        }
        const int done = examine(raw(), &options, &result);
#ifdef __cpp_exceptions
        if (told.thrown)
            std::rethrow_exception(told.thrown);
#endif
        if (done < 0)
            return Fault::of(done);
        return result;
    }

    static Result<void> nothing(int result) { return detail::to_result<void>(result); }

    static Result<Volume> of(int done, adit_volume *volume, detail::CoreReference parent)
    {
        if (done < 0)
            return Fault::of(done);
        return Volume(std::make_shared<detail::Core>(volume, std::move(parent)));
    }

    static Result<adit_stat> stat_of(int done, const adit_stat &stat)
    {
        if (done < 0)
            return Fault::of(done);
        return stat;
    }

    detail::CoreReference core_;
};

} // namespace adit

#endif /* ADIT_VOLUME_HPP */
