/*
 * adit.h: the C interface of Adit, a user-space file system for database storage engines.
 *
 * CONVENTIONS
 *
 * Results    A function returns a value >= 0, or a negative errno (-ENOENT, -ENOSPC ...). The value of errno
 *            after a call is unspecified. Byte counts are int64_t; everything else is int, 0 meaning done.
 *            adit_error_message() says in words what failed in the last failed call of this thread; a failed
 *            operation that adit_op_wait or adit_op_poll told of, or request of adit_pread_many, counts as one.
 *            What a failed call would have returned through a pointer is left as it was.
 * Units      Every length, size and offset is in bytes. Positions are explicit: a file has no current
 *            offset, so there is no lseek; adit_append() writes at the end.
 * Paths      '/' separated UTF-8 or any other bytes, from the volume's root; a leading '/' may be left out.
 *            A name has at most 255 bytes. '.' and '..' mean what they mean in POSIX.
 * Handles    Opaque pointers. Who gets one through an out parameter owns it and gives it back exactly
 *            once with the matching close or release; using it afterwards is undefined. A NULL handle
 *            is -EINVAL; releasing NULL is nothing. Files, blobs, buffers and directories must be
 *            closed before their volume.
 * Threads    Any function may be called from any thread at the same time, on the same handle too, with
 *            these exceptions: an adit_dir and an adit_op belong to one thread at a time, and a handle is
 *            closed when no other call on it is running. A call blocks until it is done.
 * Signals    No function may be called from a signal handler: -EDEADLK if that handler interrupted Adit.
 * Fork       A child of fork() inherits no volume: every handle of the parent answers -EBADF in it (also
 *            to close, which then only frees memory). exec'ed programs are not concerned.
 * Memory     Data passed in is read during the call only, except by the *_submit functions, which
 *            say so. Strings passed out belong to Adit; each function says for how long they are valid.
 *            Memory passed in must be readable (and writable, where Adit fills it) until the call
 *            returns. Where the kernel's write would answer -EFAULT, a copy in this process gets
 *            SIGSEGV or SIGBUS: so it goes when data comes from a mapping of a file that somebody
 *            truncates meanwhile. The volume is then as after any other death of the process. A
 *            handler that jumps out of the call instead leaves the volume locked: every other call
 *            on it waits for ever.
 * Structs    Those with struct_bytes grow at their end in later versions: set it to the sizeof that the
 *            program was compiled with and zero the rest (ADIT_..._INIT does both). Zero means
 *            "the default" in every option; an option that the library does not know is -E2BIG. Of a
 *            result a function writes what the program has room for, and zero for what the library
 *            does not know; struct_bytes stays, so the struct can be used again.
 *
 * WHAT IS DURABLE WHEN
 *
 *   a write returned             it is seen by every reader at once, and survives the death of the process
 *                                (kill -9 included) as long as the machine stays up
 *   adit_fsync, adit_fdatasync   data, size and mapping of the file and the names by which it can be reached
 *   returned 0                   survive a power cut
 *   adit_fsync_path on a         all earlier operations on names in that directory survive a power cut
 *   directory returned 0
 *   adit_syncfs returned 0       everything before it survives a power cut
 *   power cut without those      names are as they were after some prefix of the operations on them; never
 *                                garbage, never another file's bytes
 *   adit_rename                  is atomic, also over a target and across directories
 *   adit_pwrite_atomic           all of its ranges or none, after a power cut too
 *   a write failed later         each file handle open then gets the error once, from its next fsync; the data
 *                                stays in memory and is tried again
 *
 * MESSAGES
 *
 * An error goes to the caller of a function. For everybody else, and for events without a caller,
 * there are messages: a volume becomes read-only, data can't be written back, recovery brought
 * something back. Adit prints nothing by itself, but for one line on standard error in a forked
 * child that uses its parent's volume. A program that does not call adit_set_log gets no messages.
 *
 * This header is C11 and C++17. The library needs no thread, signal or allocator set-up by the program.
 */
#ifndef ADIT_H
#define ADIT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A library with the same major number runs programs made for a smaller minor one. */
#define ADIT_API_MAJOR 0
#define ADIT_API_MINOR 1

typedef struct adit_volume adit_volume; /* an open volume */
typedef struct adit_file adit_file;     /* an open file, or a directory opened to be fsynced or locked */
typedef struct adit_dir adit_dir;       /* a directory being read */
typedef struct adit_op adit_op;         /* a submitted operation */
typedef struct adit_blob adit_blob;     /* an open blob */

typedef struct adit_time {
    int64_t seconds; /* since 1970-01-01 UTC */
    uint32_t nanoseconds;
    uint32_t reserved;
} adit_time;

/* ------------------------------------------------------------------------------------------------ library */

/* The library's version, like "0.1.0"; valid for ever. */
const char *adit_version(void);

/* Major * 1000 + minor of the interface that the library implements. */
int adit_api_version(void);

/* What failed in the last failed call of this thread, like
 * "open /db/CURRENT: No such file or directory (ENOENT)"; "" if none failed.
 * Valid until the next call of this function in this thread. */
const char *adit_error_message(void);

#define ADIT_LOG_ERROR 1   /* data is in danger, or a volume takes no more changes: somebody must act */
#define ADIT_LOG_WARNING 2 /* Adit goes on with less than was asked for, or tries again */
#define ADIT_LOG_INFO 3    /* what recovery did */
#define ADIT_LOG_DEBUG 4   /* details for those who work on Adit */

/* One line of UTF-8 text without a newline; valid during the call. It begins with the volume's address. */
typedef void (*adit_log)(void *user_data, int level, const char *message);

/* Messages of this level and of smaller numbers go to callback from now on, in place of the one
 * before; NULL: they go nowhere, as at the beginning. This is for all volumes of the process: call
 * it before the first one is opened.
 * callback is called by whichever thread has a message, also by Adit's own threads, and by several
 * at once; other calls on the volume may wait until it returns. It must not call any function of
 * this header (that may hang or answer -EDEADLK; this function always answers so), nor wait for a
 * thread that does, nor leave by longjmp or an exception. Once this function has returned, the
 * callback before is not running and is not called again.
 * -EINVAL: no such level; -EDEADLK: called from inside of callback; -EBUSY: a Rust program with a
 * tracing subscriber, which gets the messages. */
int adit_set_log(adit_log callback, void *user_data, int level);

/* ------------------------------------------------------------------------------------------------ volumes
 *
 * ADDRESS: the PATH of an image file or block device, or mem:SIZE (like mem:256M) for a volume in
 * memory, which is formatted when it is opened and gone when it is closed. */

typedef struct adit_mkfs_options {
    uint32_t struct_bytes;
    uint32_t flags;         /* ADIT_MKFS_... */
    uint64_t size_bytes;    /* of an image that is to be created or grown; default: what is there */
    uint64_t journal_bytes; /* default: by the size of the volume */
    uint32_t cluster_bytes; /* preferred unit of allocation; default: chosen by Adit */
    uint32_t reserved;
} adit_mkfs_options;

#define ADIT_MKFS_OPTIONS_INIT { sizeof(adit_mkfs_options), 0, 0, 0, 0, 0 }

#define ADIT_MKFS_FORCE 0x1u /* overwrite what looks like a file system (never a volume that is open) */
#define ADIT_MKFS_DATA_CHECKSUMS 0x2u /* every page of data has a checksum: what a device changes silently is -EIO */

/* Formats a volume. options may be NULL. -EEXIST: there is something on it, and no ADIT_MKFS_FORCE. */
int adit_mkfs(const char *address, const adit_mkfs_options *options);

typedef struct adit_open_options {
    uint32_t struct_bytes;
    uint32_t flags;       /* ADIT_VOLUME_... */
    uint64_t cache_bytes; /* bound of the page cache, 8 MiB to the memory of the machine (else -EINVAL); default: 256 MiB */
    uint32_t queue_depth; /* requests in flight at the device; default: 128 */
    uint32_t reserved;
    const char *survive_in; /* directory of the memory that survives the process, on a tmpfs; default: /dev/shm */
} adit_open_options;

#define ADIT_OPEN_OPTIONS_INIT { sizeof(adit_open_options), 0, 0, 0, 0, 0 }

#define ADIT_VOLUME_READ_ONLY 0x1u
#define ADIT_VOLUME_IO_URING 0x2u    /* force this way of reaching a file; default: whichever a probe finds faster */
#define ADIT_VOLUME_SYNC 0x4u        /* likewise: pread and pwrite by the calling thread */
/* By default written data survives the death of the process, in shared memory; with too little room for the
 * cache there the cache becomes smaller, and with room for less than 8 MiB the open fails (-ENOSPC). */
#define ADIT_VOLUME_NO_SURVIVAL 0x8u /* written data that wasn't synced dies with the process */
#define ADIT_VOLUME_PREFER_SURVIVAL 0x20u /* it survives if that is possible; see adit_volume_survives */
#define ADIT_VOLUME_NO_INSPECTION 0x10u /* no thread that lets `adit ls` and the like look at the open volume */

/* What a killed process left there is taken over completely, or the open fails with -EOWNERDEAD. adit_last_error
 * says why, and which of these is the way out. */
#define ADIT_VOLUME_ADOPT 0x40u    /* the image is the one that was open then, though it was moved */
#define ADIT_VOLUME_LEAVE 0x80u    /* open without that data, and leave it to the image it belongs to: this is a copy */
#define ADIT_VOLUME_DISCARD 0x100u /* open without that data, and delete it */

/* Sets what the environment names, for programs that have no settings of their own: ADIT_CACHE (like 64M),
 * ADIT_SURVIVE (require, prefer or off), ADIT_SURVIVE_IN (a directory; the string stays the environment's) and
 * ADIT_TAKEOVER (complete, adopt, leave or discard). -EINVAL names the variable that can't be understood. */
int adit_options_from_environment(adit_open_options *options);

/* Opens a volume for this process, recovering it if its last user did not close it. options may be NULL.
 * -EBUSY: another process has it open (the message names it), or this one has. -EOWNERDEAD: see above. */
int adit_open_volume(const char *address, const adit_open_options *options, adit_volume **volume);

/* 1 if what was written and not synced survives the death of this process, else 0. */
int adit_volume_survives(adit_volume *volume);

/* Makes everything durable and closes. -EBUSY, and nothing happens, while files, directories, blobs
 * or operations of the volume are open (the message says how many). After any other error the volume is closed
 * nevertheless, and the next open recovers. */
int adit_close_volume(adit_volume *volume);

typedef struct adit_statfs {
    uint32_t struct_bytes;    /* set by the caller */
    uint32_t page_bytes;      /* 4096 */
    uint64_t total_bytes;     /* for data and its metadata */
    uint64_t free_bytes;      /* free space for a new file */
    uint64_t available_bytes; /* the part of it that a program may still use */
    uint64_t volume_id[2];    /* the volume's random id, low half first */
    uint32_t name_max_bytes;  /* 255 */
    uint32_t reserved;
} adit_statfs;

#define ADIT_STATFS_INIT { sizeof(adit_statfs), 0, 0, 0, 0, { 0, 0 }, 0, 0 }

int adit_volume_statfs(adit_volume *volume, adit_statfs *result);

/* The same volume on behalf of a user: what is done through *user obeys permission bits as Linux does, and what is made
 * belongs to them. 0 is the superuser, whom little is refused. A volume as adit_open_volume gives it acts for the
 * process's effective user and group, whom nothing is refused: who can open the device can do anything with it.
 * groups are the supplementary ones, at most 65536. Close it with adit_close_volume before the volume itself; it may be
 * closed while files that were opened through it are open, and these go on acting for the user. */
int adit_on_behalf_of(adit_volume *volume, uint32_t uid, uint32_t gid, const uint32_t *groups, size_t count,
                      adit_volume **user);

/* Makes everything on the volume durable. */
int adit_syncfs(adit_volume *volume);

/* ------------------------------------------------------------------------------------------------ files */

/* Exactly one of the first three, and any of the others. */
#define ADIT_O_RDONLY 0x0u
#define ADIT_O_WRONLY 0x1u
#define ADIT_O_RDWR 0x2u
#define ADIT_O_CREAT 0x10u     /* create it if it does not exist */
#define ADIT_O_EXCL 0x20u      /* with ADIT_O_CREAT: -EEXIST if it does */
#define ADIT_O_TRUNC 0x40u     /* make it empty */
#define ADIT_O_APPEND 0x80u    /* every write goes to the end, whatever its offset */
#define ADIT_O_DIRECT 0x100u   /* past the cache: without a copy where offset, length and memory are multiples of 4096 */
#define ADIT_O_DSYNC 0x200u    /* each write is followed by an fdatasync of its own */
#define ADIT_O_SYNC 0x400u     /* each write is followed by an fsync of its own */
#define ADIT_O_DIRECTORY 0x800u /* -ENOTDIR if it isn't one; ADIT_O_RDONLY only */
#define ADIT_O_NOFOLLOW 0x1000u /* -ELOOP if the path ends with a symbolic link; with ADIT_O_PATH, that itself is opened */
#define ADIT_O_PATH 0x2000u    /* a handle that keeps an inode of any kind, for adit_fstat; all else is -EBADF */
#define ADIT_O_NOATIME 0x4000u /* reading leaves the access time; -EPERM unless the file is theirs */

/* mode: permission bits of a file that is created, like 0644; whom they bind: see adit_on_behalf_of.
 * Pipes, sockets and devices can be opened with ADIT_O_PATH only: -ENXIO.
 * A file whose last name is removed lives on until it is closed. */
int adit_open(adit_volume *volume, const char *path, unsigned flags, unsigned mode, adit_file **file);

/* Closing does not sync. The handle is gone whatever is returned. */
int adit_close(adit_file *file);

/* At most len bytes from offset on; fewer at the end of the file, 0 beyond it. */
int64_t adit_pread(adit_file *file, void *data, size_t len, uint64_t offset);
int64_t adit_preadv(adit_file *file, const struct iovec *vector, int count, uint64_t offset);

/* All len bytes or an error; never fewer. -ENOSPC comes before anything was written; after -EIO or -ENOMEM what
 * precedes the failure may be. */
int64_t adit_pwrite(adit_file *file, const void *data, size_t len, uint64_t offset);

#define ADIT_WRITE_DSYNC 0x1u /* the call ends with an fdatasync */

/* count is at most 1024 here and in adit_preadv and adit_appendv. */
int64_t adit_pwritev(adit_file *file, const struct iovec *vector, int count, uint64_t offset, unsigned flags);

/* Writes at the end; atomic with respect to other appends. *offset (may be NULL) gets where. */
int64_t adit_append(adit_file *file, const void *data, size_t len, uint64_t *offset);
int64_t adit_appendv(adit_file *file, const struct iovec *vector, int count, unsigned flags, uint64_t *offset);

/* Writes count ranges, later ones over earlier ones: all of them or none, whatever fails or dies in between. Without
 * ADIT_WRITE_DSYNC the next fdatasync makes it durable; with it, that is part of the call, nothing is left for a
 * following one to do, and when only that part fails, what was written is seen but may be lost, as a whole. What was
 * written to the file before becomes durable at the latest with it. Readers that overlap in time see each page of 4096
 * bytes before or after it, but perhaps not all pages alike.
 * -E2BIG: more than adit_atomic_write_max, or more than 16 separate holes or preallocated places before the end
 * of the file; -EINVAL: the file was opened with ADIT_O_APPEND. After both, and -ENOSPC, nothing has changed. */
typedef struct adit_write_range {
    uint64_t offset;
    const void *data;
    size_t len;
} adit_write_range;

int adit_pwrite_atomic(adit_file *file, const adit_write_range *ranges, size_t count, unsigned flags);

/* Most bytes that one adit_pwrite_atomic may change, each page of 4096 bytes that it touches counted as a whole:
 * some 250 KiB to 1 MiB, by the size of the journal. */
int64_t adit_atomic_write_max(adit_file *file);

/* Several reads of one file that overlap in time; their memory must not overlap. */
typedef struct adit_read_request {
    uint64_t offset;
    void *data;
    size_t len;
    int64_t result; /* out: as adit_pread would have returned it */
} adit_read_request;

/* 0 when every request has its result (which may be an error). */
int adit_pread_many(adit_file *file, adit_read_request *requests, size_t count);

int adit_fsync(adit_file *file);     /* also times and mode */
int adit_fdatasync(adit_file *file); /* what is needed to read the data back */

/* Starts to write the file's dirty data to the device, in the background. Promises nothing about
 * durability; a later sync has less to write. */
int adit_start_write_back(adit_file *file);

/* What is beyond a smaller size is gone, also what was only allocated; what is new reads as zeros. */
int adit_ftruncate(adit_file *file, uint64_t size);

/* 0 allocates the range and makes the file at least that long, so that later writes there need no space. */
#define ADIT_FALLOC_KEEP_SIZE 0x1u  /* allocate, but leave the size */
#define ADIT_FALLOC_PUNCH_HOLE 0x2u /* give the range's space back; it reads as zeros. Size unchanged */
#define ADIT_FALLOC_ZERO_RANGE 0x4u /* the range reads as zeros and stays or becomes allocated; with KEEP_SIZE or not */

int adit_fallocate(adit_file *file, unsigned mode, uint64_t offset, uint64_t len);

/* Where the next data, or the next hole, is from offset on, like SEEK_DATA and SEEK_HOLE. What was only allocated is a
 * hole, and so is the end of the file. -ENXIO at and behind the end, and if no data follows. */
int64_t adit_next_data(adit_file *file, uint64_t offset);
int64_t adit_next_hole(adit_file *file, uint64_t offset);

/* Copies up to len bytes within a volume, and returns how many: fewer at the end of the source, after 1 GiB, and if an
 * error came after a part. Not atomic. Holes are left out. -EINVAL if the two ranges overlap in one file; -EBADF unless
 * from can read and to can write, and for ADIT_O_APPEND; -EXDEV for files of different volumes. */
int64_t adit_copy_range(adit_file *from, uint64_t offset, adit_file *to, uint64_t to_offset, uint64_t len);

typedef struct adit_stat {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t mode;         /* type and permissions, as S_ISREG() and its like expect */
    uint64_t ino;        /* the same file has the same ino and generation as long as it lives; */
    uint64_t generation; /* no two files ever share both */
    uint64_t size_bytes;
    uint64_t allocated_bytes;
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    uint32_t reserved;
    adit_time atime; /* last access; reading doesn't change it, adit_utimens does */
    adit_time mtime; /* last change of the content */
    adit_time ctime; /* last change of content or attributes */
    adit_time btime; /* creation */
    uint64_t rdev; /* number of a device node */
} adit_stat;

#define ADIT_STAT_INIT \
    { sizeof(adit_stat), 0, 0, 0, 0, 0, 0, 0, 0, 0, \
      { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }, 0 }

int adit_fstat(adit_file *file, adit_stat *result);

/* The file's size; cheaper than adit_fstat. */
int64_t adit_file_size(adit_file *file);

#define ADIT_LOCK_SHARED 1
#define ADIT_LOCK_EXCLUSIVE 2
#define ADIT_LOCK_UNLOCK 8
#define ADIT_LOCK_NONBLOCKING 4 /* or-ed to the first two: -EWOULDBLOCK instead of waiting */

/* flock(2): advisory, owned by this handle, released when it is closed. */
int adit_flock(adit_file *file, int operation);

#define ADIT_LOCK_POSIX 16 /* or-ed: whose lock it is says owner, and not the handle */

/* fcntl(2)'s lock of a range of bytes: advisory, and nothing to do with adit_flock. */
typedef struct adit_range_lock {
    uint64_t offset;   /* wherever the file ends */
    uint64_t len;      /* 0: to the end of the file, however it grows */
    uint64_t owner;    /* with ADIT_LOCK_POSIX: tells owners apart */
    int32_t pid;       /* with ADIT_LOCK_POSIX: told to who asks what blocks him; else -1 there */
    int32_t operation; /* ADIT_LOCK_... */
} adit_range_lock;

/* Locks or unlocks, in place of what the owner has locked in the range. -EAGAIN instead of waiting if so asked;
 * -EDEADLK: POSIX owners would wait for each other in a circle; -EBADF: the handle can't read (shared) or write
 * (exclusive); -EINVAL, -EOVERFLOW: a range beyond 2^63 - 1; -ENOLCK: more than 4096 locks. A handle's locks are
 * released when it is closed. */
int adit_lock_range(adit_file *file, const adit_range_lock *lock);

/* 1 and in *blocker a lock that is in the way of this one, or 0. */
int adit_test_lock(adit_file *file, const adit_range_lock *lock, adit_range_lock *blocker);

/* Releases all locks of a POSIX owner on the file, which closing a handle does not: it knows no owners. */
int adit_release_locks(adit_file *file, uint64_t owner);

/* ------------------------------------------------------------------------------------------------ buffers */

/* Memory that is Adit's as long as the caller holds it; the structure itself is the caller's. It may be moved,
 * but only one copy of it is to be released. data is NULL and len 0 when it holds nothing. */
typedef struct adit_buffer {
    void *data; /* read-only if borrowed */
    size_t len;
    uint64_t opaque[6];
} adit_buffer;

/* A read without a copy: *buffer holds the cache's own memory, which keeps this content, whatever is
 * written meanwhile, until it is released. Returns its length: at least 1 unless offset is at or
 * beyond the end (then 0), at most len, and possibly less: what lies in one page. To hold many is to hold
 * much of the cache. */
int64_t adit_pread_borrow(adit_file *file, size_t len, uint64_t offset, adit_buffer *buffer);

/* Memory of one's own, aligned to 4096 and fit for DMA: adit_pread and adit_pwrite with ADIT_O_DIRECT
 * move data between it and the device without a copy. Up to 1 MiB it comes from a pool of 64 MiB, and is not
 * cleared: -ENOMEM while all of that is lent. More is fetched from the system: -ENOMEM when that has none,
 * -EINVAL from 4 GiB on. */
int adit_buffer_allocate(adit_volume *volume, size_t len, adit_buffer *buffer);

void adit_buffer_release(adit_buffer *buffer);

/* ------------------------------------------------------------------------------------------------ asynchronous
 *
 * A submitted operation runs to its end whatever happens to its handle; memory passed to it must stay
 * as it is until then. Completion is told in one of two ways; the other argument is NULL:
 *   done   is called once with context and the result, by whichever thread completes the
 *          operation (possibly the submitting one, before the call returns). It must not block or call Adit.
 *   op     gets a handle to poll or wait for, to be released.
 * The result is what the blocking twin returns (of adit_append_submit: the offset). A submission that returns an
 * error calls nothing. 4 GiB or more can't be written or appended at once so: -EINVAL. */

typedef void (*adit_done)(void *context, int64_t result);

int adit_pread_submit(adit_file *file, void *data, size_t len, uint64_t offset,
                      adit_done done, void *context, adit_op **op);
int adit_pwrite_submit(adit_file *file, const void *data, size_t len, uint64_t offset,
                       adit_done done, void *context, adit_op **op);
int adit_append_submit(adit_file *file, const void *data, size_t len,
                       adit_done done, void *context, adit_op **op);
int adit_fsync_submit(adit_file *file, adit_done done, void *context, adit_op **op);
int adit_fdatasync_submit(adit_file *file, adit_done done, void *context, adit_op **op);

/* 1 and *result if the operation is done, else 0 after making what progress is possible without waiting. */
int adit_op_poll(adit_op *op, int64_t *result);

/* Waits for the result, and returns it; again and again if asked. */
int64_t adit_op_wait(adit_op *op);

/* Forgets the handle; the operation goes on. */
void adit_op_release(adit_op *op);

/* ------------------------------------------------------------------------------------------------ names */

int adit_stat_path(adit_volume *volume, const char *path, adit_stat *result);
int adit_truncate(adit_volume *volume, const char *path, uint64_t size);

/* Opens, fsyncs and closes: a directory's names, or a file. */
int adit_fsync_path(adit_volume *volume, const char *path);

int adit_link(adit_volume *volume, const char *existing, const char *path);
int adit_unlink(adit_volume *volume, const char *path);

#define ADIT_RENAME_NOREPLACE 0x1u /* -EEXIST instead of replacing */
#define ADIT_RENAME_EXCHANGE 0x2u  /* both must exist, and change places */

int adit_rename(adit_volume *volume, const char *from, const char *to, unsigned flags);

int adit_mkdir(adit_volume *volume, const char *path, unsigned mode);
int adit_rmdir(adit_volume *volume, const char *path);

#define ADIT_TYPE_UNKNOWN 0
#define ADIT_TYPE_FILE 1
#define ADIT_TYPE_DIRECTORY 2
#define ADIT_TYPE_SYMLINK 3
#define ADIT_TYPE_FIFO 4
#define ADIT_TYPE_SOCKET 5
#define ADIT_TYPE_CHAR_DEVICE 6
#define ADIT_TYPE_BLOCK_DEVICE 7

typedef struct adit_dirent {
    uint64_t ino;
    uint64_t cookie;  /* adit_seekdir(dir, cookie) continues after this entry, also in another process */
    const char *name; /* zero-terminated; valid until the next call on this adit_dir */
    uint32_t name_len;
    uint32_t type; /* ADIT_TYPE_... */
} adit_dirent;

int adit_opendir(adit_volume *volume, const char *path, adit_dir **dir);

/* 1 and *entry, or 0 at the end. '.' and '..' are not among the entries. What exists during the whole
 * reading is returned exactly once; what is created or removed meanwhile, at most once. */
int adit_readdir(adit_dir *dir, adit_dirent *entry);

/* 0 begins again. */
int adit_seekdir(adit_dir *dir, uint64_t cookie);
int adit_closedir(adit_dir *dir);

/* ------------------------------------------------------------------------------------------------ attributes
 *
 * With ADIT_NOFOLLOW a path that ends with a symbolic link means the link itself, else what it leads to. Which errno
 * means what is as in Linux's manual pages of the functions with these names. */

#define ADIT_NOFOLLOW 0x1u

/* As adit_stat_path, of a symbolic link itself. */
int adit_lstat_path(adit_volume *volume, const char *path, adit_stat *result);

/* A link that says target, 1 to 4095 bytes; whether that leads anywhere is not looked at. */
int adit_symlink(adit_volume *volume, const char *target, const char *path);

/* What a link says, without a zero at its end. Returns the length needed, and copies if it fits (-ERANGE if not); len 0
 * only asks. */
int64_t adit_readlink(adit_volume *volume, const char *path, char *target, size_t len);

/* Makes a pipe, socket, device or empty file: mode has its type (S_IFIFO ...) and permission bits. Such nodes are kept
 * and shown, and do nothing here. */
int adit_mknod(adit_volume *volume, const char *path, unsigned mode, uint64_t device);

#define ADIT_X_OK 1u
#define ADIT_W_OK 2u
#define ADIT_R_OK 4u

/* -EACCES unless the user of this handle may do all of that; 0 only asks whether it is there. */
int adit_access(adit_volume *volume, const char *path, unsigned wanted);

int adit_chmod(adit_volume *volume, const char *path, unsigned mode, unsigned flags);
int adit_fchmod(adit_file *file, unsigned mode);

/* UINT32_MAX leaves the user or group as it is. */
int adit_chown(adit_volume *volume, const char *path, uint32_t uid, uint32_t gid, unsigned flags);
int adit_fchown(adit_file *file, uint32_t uid, uint32_t gid);

#define ADIT_TIME_NOW 0x3fffffffu  /* as nanoseconds: the time of the call */
#define ADIT_TIME_OMIT 0x3ffffffeu /* likewise: leave it */

/* Two times, of the last access and of the last change of the content. NULL: both now. */
int adit_utimens(adit_volume *volume, const char *path, const adit_time *times, unsigned flags);
int adit_futimens(adit_file *file, const adit_time *times);

#define ADIT_XATTR_CREATE 0x2u  /* -EEXIST if it is there */
#define ADIT_XATTR_REPLACE 0x4u /* -ENODATA if it isn't */

/* Extended attributes. Names begin with user., trusted. or security., or are those of access control lists, which are
 * kept and not obeyed. All those of a file have about 4000 bytes together: -ENOSPC. get and list return the length needed, and
 * copy if it fits (-ERANGE if not); len 0 only asks. */
int adit_set_xattr(adit_volume *volume, const char *path, const char *name, const void *value, size_t len, unsigned flags);
int64_t adit_get_xattr(adit_volume *volume, const char *path, const char *name, void *value, size_t len, unsigned flags);
int adit_remove_xattr(adit_volume *volume, const char *path, const char *name, unsigned flags);
int64_t adit_list_xattrs(adit_volume *volume, const char *path, char *names, size_t len, unsigned flags);
int adit_fset_xattr(adit_file *file, const char *name, const void *value, size_t len, unsigned flags);
int64_t adit_fget_xattr(adit_file *file, const char *name, void *value, size_t len);
int adit_fremove_xattr(adit_file *file, const char *name);
int64_t adit_flist_xattrs(adit_file *file, char *names, size_t len); /* each with its zero */

/* ------------------------------------------------------------------------------------------------ blobs
 *
 * A blob is an array of pages without a name; files are made of the same stuff. A blob is found by its id. */

typedef struct adit_blob_id {
    uint64_t slot;       /* never 0 */
    uint64_t generation; /* a deleted blob's id is never that of another */
} adit_blob_id;

/* Creates an empty blob; as all changes of blobs it survives a power cut after adit_blob_sync or adit_syncfs. */
int adit_blob_create(adit_volume *volume, adit_blob_id *id);

/* -ENOENT: there is no blob of that id (any more). */
int adit_blob_open(adit_volume *volume, const adit_blob_id *id, adit_blob **blob);
int adit_blob_close(adit_blob *blob);

/* Deletes it and gives its space back. -EBUSY while it is open. */
int adit_blob_delete(adit_volume *volume, const adit_blob_id *id);

int64_t adit_blob_size(adit_blob *blob);

/* What is beyond a smaller size is gone; what is new reads as zeros and takes no space. */
int adit_blob_resize(adit_blob *blob, uint64_t size);

int64_t adit_blob_read(adit_blob *blob, void *data, size_t len, uint64_t offset);

/* All or an error. A write beyond the end makes the blob longer. */
int64_t adit_blob_write(adit_blob *blob, const void *data, size_t len, uint64_t offset);

/* Data, size and attributes survive a power cut. */
int adit_blob_sync(adit_blob *blob);

/* Extended attributes. A name has 1 to 255 bytes; names and values of a blob must fit where it is described:
 * -ENOSPC if they don't. get and list return the length needed, and copy if it fits (-ERANGE if not); len 0 only asks. */
int adit_blob_set_xattr(adit_blob *blob, const char *name, const void *value, size_t len);
int64_t adit_blob_get_xattr(adit_blob *blob, const char *name, void *value, size_t len);
int adit_blob_remove_xattr(adit_blob *blob, const char *name); /* -ENODATA if there is none */
int64_t adit_blob_list_xattrs(adit_blob *blob, char *names, size_t len); /* each with its zero */

/* Iterates over all blobs that are not files or directories: *id is the last one seen ({0, 0} at the beginning) and
 * becomes the next one. 1, or 0 after the last. */
int adit_blob_next(adit_volume *volume, adit_blob_id *id);

#ifdef __cplusplus
}
#endif

#endif /* ADIT_H */
