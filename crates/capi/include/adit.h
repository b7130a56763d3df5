/*
 * adit.h: the C interface of Adit, a user-space file system for database storage engines.
 *
 * CONVENTIONS
 *
 * Results    A function returns a value >= 0, or a negative errno (-ENOENT, -ENOSPC ...). The value
 *            of errno after a call is unspecified. Byte counts are int64_t; all other results are
 *            int, and 0 means success. adit_error_message() describes the last failed call of this
 *            thread; a failed operation reported by adit_op_wait or adit_op_poll, and a failed
 *            request of adit_pread_many, count as one. A failed result in an adit_completion does
 *            not: it is the errno only. A failed call leaves its out-parameters
 *            unchanged.
 * Units      Every length, size and offset is in bytes. Positions are explicit: a file has no
 *            current offset, and there is no lseek; adit_append() writes at the end.
 * Paths      '/' separated UTF-8 or any other bytes, from the volume's root; a leading '/' is
 *            optional. A name has at most 255 bytes. '.' and '..' are as in POSIX.
 * Handles    Opaque pointers. A caller that receives one through an out-parameter owns it and
 *            passes it exactly once to the matching close or release; later use is undefined. A
 *            NULL handle is -EINVAL; releasing NULL has no effect. Files, blobs, buffers, queues
 *            and directories must be closed before their volume.
 * Threads    Any function may be called from any thread at the same time, also on the same handle,
 *            with these exceptions: an adit_dir and an adit_op belong to one thread at a time, and
 *            a handle is closed only when no other call on it is running. A call blocks until it
 *            is done.
 * Signals    A signal handler must not call any function: -EDEADLK if it interrupted Adit.
 *            With a volume of this process, the kernel may complete a request of io_uring in the
 *            thread that made it while that thread waits elsewhere, and takes that for a signal.
 *            epoll_wait, semop, sigtimedwait and calls of a socket with a timeout may then fail
 *            with EINTR though no signal came; write to a pipe, send, and recv with MSG_WAITALL
 *            may move a part only.
 * Fork       A child of fork() inherits no volume: every handle of the parent answers -EBADF in it
 *            (also to close, which then only frees memory). Programs started by exec are not
 *            affected.
 * Memory     A function reads the memory passed to it during the call only, except for the *_submit
 *            functions, which say so. Strings passed out belong to Adit; each function says how
 *            long they are valid. Memory passed in must stay readable (and writable, where Adit
 *            fills it) until the call returns. Where the kernel's write would return -EFAULT, a
 *            copy in this process gets SIGSEGV or SIGBUS, for example from a mapping of a file that
 *            another process truncates meanwhile. The volume is then as after any other death of
 *            the process. A handler that jumps out of the call leaves the volume locked: every
 *            other call on it waits forever.
 * Structs    Structs with struct_bytes grow at their end in later versions: set it to the sizeof
 *            that the program was compiled with, and zero the other fields (ADIT_..._INIT does
 *            both). Zero means "the default" in every option; an option that the library does not
 *            know is -E2BIG. Of a result, the library writes at most struct_bytes bytes, and zero
 *            to the fields that only the program knows; struct_bytes keeps its value.
 *
 * WHAT IS DURABLE WHEN
 *
 *   a write returned             Every reader sees it. It survives the death of the process
 *                                (kill -9 included) as long as the machine stays up.
 *   adit_fsync, adit_fdatasync   Data, size and mapping of the file, and the names by which it can
 *   returned 0                   be reached, survive a power cut.
 *   adit_fsync_path on a         All earlier operations on names in that directory survive a power
 *   directory returned 0         cut.
 *   adit_syncfs returned 0       Everything before it survives a power cut.
 *   power cut without those      Names are as they were after some prefix of the operations on
 *                                them; never garbage, never another file's bytes.
 *   adit_rename                  Atomic, also over a target and across directories.
 *   adit_pwrite_atomic           All of its ranges or none, after a power cut too.
 *   write-back failed            Each file handle open then gets the error once, from its next
 *                                fsync; the data stays in memory and is written again.
 *
 * MESSAGES
 *
 * A function returns its errors to its caller. Messages report events that have no caller: a volume
 * becomes read-only, write-back fails, recovery restored data. Adit itself prints nothing, except
 * for one line on standard error in a forked child that uses its parent's volume. A program that
 * does not call adit_set_log gets no messages.
 *
 * This header is C11 and C++17. The library needs no set-up of threads, signals or allocators.
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

/* The version of this interface. A library runs every program that was compiled for the same major
 * and the same or a smaller minor number. */
#define ADIT_API_MAJOR 0
#define ADIT_API_MINOR 1

typedef struct adit_volume adit_volume; /* an open volume */
typedef struct adit_file adit_file;     /* an open file, or a directory opened for fsync or locks */
typedef struct adit_dir adit_dir;       /* a directory being read */
typedef struct adit_op adit_op;         /* a submitted operation */
typedef struct adit_queue adit_queue;   /* a queue of completions */
typedef struct adit_blob adit_blob;     /* an open blob */

typedef struct adit_time {
    int64_t seconds; /* since 1970-01-01 UTC */
    uint32_t nanoseconds;
    uint32_t reserved;
} adit_time;

/* ----------------------------------------------------------------------------------- library */

/* The library's version, like "0.1.0"; always valid. */
const char *adit_version(void);

/* Major * 1000 + minor of the interface that the library implements. */
int adit_api_version(void);

/* Describes the last failed call of this thread, like
 * "open /db/CURRENT: No such file or directory (ENOENT)"; "" if none failed.
 * Valid until the next call of this function in this thread. */
const char *adit_error_message(void);

#define ADIT_LOG_ERROR 1   /* data is in danger, or a volume takes no more changes: act now */
#define ADIT_LOG_WARNING 2 /* Adit goes on with fewer resources than requested, or tries again */
#define ADIT_LOG_INFO 3    /* results of recovery */
#define ADIT_LOG_DEBUG 4   /* details for Adit's developers */

/* One line of UTF-8 text without a newline; valid during the call. It begins with the volume's
 * address. */
typedef void (*adit_log)(void *user_data, int level, const char *message);

/* Sends messages of this level and of smaller numbers to callback, in place of the previous one;
 * NULL drops them, as at the start. The setting is for all volumes of the process: make it before
 * the first one is opened.
 * The thread that has a message calls callback: any thread, also Adit's own, and several at once.
 * Other calls on the volume may wait until it returns. callback must not call any function of this
 * header (that may hang or return -EDEADLK; this function always returns -EDEADLK), nor wait for a
 * thread that does, nor leave by longjmp or an exception. After this function has returned, the
 * previous callback is neither running nor called again.
 * -EINVAL: no such level; -EDEADLK: called from inside callback; -EBUSY: a Rust program with a
 * tracing subscriber, which gets the messages. */
int adit_set_log(adit_log callback, void *user_data, int level);

/* ----------------------------------------------------------------------------------- volumes
 *
 * ADDRESS: the PATH of an image file or block device, or mem:SIZE (like mem:256M) for a volume in
 * memory, which is formatted when it is opened and gone when it is closed. */

typedef struct adit_mkfs_options {
    uint32_t struct_bytes;
    uint32_t flags;         /* ADIT_MKFS_... */
    uint64_t size_bytes;    /* of an image to create or grow, in whole pages of 4 KiB; default:
                               its present size */
    uint64_t journal_bytes; /* default: depends on the size of the volume */
    uint32_t cluster_bytes; /* preferred unit of allocation; default: chosen by Adit */
    uint32_t reserved;
} adit_mkfs_options;

#define ADIT_MKFS_OPTIONS_INIT { sizeof(adit_mkfs_options), 0, 0, 0, 0, 0 }

#define ADIT_MKFS_FORCE 0x1u /* overwrite an existing file system (never an open volume) */
/* Every page of data has a checksum: a silent change by the device is -EIO. */
#define ADIT_MKFS_DATA_CHECKSUMS 0x2u
/* All of the image is written once, so that no later sync waits until its file system has found
 * room for a page. Takes as long as writing so many bytes. */
#define ADIT_MKFS_PREALLOCATE 0x4u

/* Formats a volume. options may be NULL. -EEXIST: the device is not empty, and ADIT_MKFS_FORCE is
 * not set. */
int adit_mkfs(const char *address, const adit_mkfs_options *options);

typedef struct adit_open_options {
    uint32_t struct_bytes;
    uint32_t flags;       /* ADIT_VOLUME_... */
    uint64_t cache_bytes; /* bound of the page cache: 8 MiB to the memory of the machine, else
                           * -EINVAL; default: 256 MiB */
    uint32_t queue_depth; /* requests in flight at the device; default: 128 */
    uint32_t reconnect_ms; /* a volume in a server: how long calls wait for the next server when this
                            * one ends, to go on with all that was open and locked; default: 10 s;
                            * UINT32_MAX: they don't wait, and are -EPIPE */
    const char *survive_in; /* directory of the memory that survives the process, on a tmpfs;
                             * default: /dev/shm */
    const char *share; /* a socket, at which other processes of this user and of root can use the
                        * volume as unix:SOCKET while this one has it; default: none can. Ignored for
                        * a volume that is in a server, is opened read-only, or is memory (mem:) */
    uint32_t workers; /* threads that use different files and directories don't wait for each other:
                       * an experiment, with 2 to 16 workers. Default: 1. Ignored for a volume that
                       * is in a server, or is opened read-only */
    uint32_t reserved; /* 0 */
} adit_open_options;

#define ADIT_OPEN_OPTIONS_INIT { sizeof(adit_open_options), 0, 0, 0, 0, 0, 0, 0, 0 }

#define ADIT_VOLUME_READ_ONLY 0x1u
/* How a file is reached; default: the way that a probe finds faster. */
#define ADIT_VOLUME_IO_URING 0x2u /* io_uring */
#define ADIT_VOLUME_SYNC 0x4u     /* pread and pwrite by the calling thread */
/* By default written data survives the death of the process, in shared memory. With too little room
 * for the cache there, the cache becomes smaller; with room for less than 8 MiB the open fails
 * (-ENOSPC). */
#define ADIT_VOLUME_NO_SURVIVAL 0x8u      /* unsynced data dies with the process */
#define ADIT_VOLUME_PREFER_SURVIVAL 0x20u /* it survives if possible; see adit_volume_survives */
/* No thread that serves `adit ls` and other inspection of the open volume. */
#define ADIT_VOLUME_NO_INSPECTION 0x10u

/* The open takes over all data that a killed process left there, or fails with -EOWNERDEAD. The
 * message of adit_error_message names the reason, and which of these flags is the way out. */
#define ADIT_VOLUME_ADOPT 0x40u    /* the image is the one that was open then, but was moved */
#define ADIT_VOLUME_LEAVE 0x80u    /* this is a copy: leave the data to the original image */
#define ADIT_VOLUME_DISCARD 0x100u /* open without that data, and delete it */

/* Sets the options that the environment names, for programs without settings of their own:
 * ADIT_CACHE (like 64M), ADIT_RECONNECT (seconds, like 30; 0: calls don't wait for the next server),
 * ADIT_SHARE (a socket; the string stays the environment's),
 * ADIT_SURVIVE (require, prefer or off), ADIT_SURVIVE_IN (a directory; the
 * string stays the environment's), ADIT_TAKEOVER (complete, adopt, leave or discard) and
 * ADIT_WORKERS (a number). -EINVAL: a variable has an unknown value; the message names it. */
int adit_options_from_environment(adit_open_options *options);

/* Opens a volume for this process, and recovers it if its last user did not close it. options may
 * be NULL. -EBUSY: another process has it open (the message names it), or this one has.
 * -EOWNERDEAD: see above. -EFBIG: this process may not write so far into a file (ulimit -f). */
int adit_open_volume(const char *address, const adit_open_options *options, adit_volume **volume);

/* 1 if unsynced data survives the death of this process, else 0. */
int adit_volume_survives(adit_volume *volume);

/* 1 if the volume is in a server (unix:SOCKET), else 0. */
int adit_volume_is_connected(adit_volume *volume);

/* Makes everything durable and closes. -EBUSY, without any effect, while files, directories, blobs,
 * queues or operations of the volume are open (the message has their number). After any other error
 * the volume is closed nevertheless, and the next open recovers it. */
int adit_close_volume(adit_volume *volume);

typedef struct adit_statfs {
    uint32_t struct_bytes;    /* set by the caller */
    uint32_t page_bytes;      /* 4096 */
    uint64_t total_bytes;     /* for data and its metadata */
    uint64_t free_bytes;      /* in no use */
    uint64_t available_bytes; /* the part of it that a new file can take; 0: read-only */
    uint64_t volume_id[2];    /* the volume's random id, low half first. `adit info` and the name of
                               * its memory in /dev/shm have the high half before the low one, as 32
                               * hexadecimal digits: "%016" PRIx64 "%016" PRIx64 */
    uint32_t name_max_bytes;  /* 255 */
    uint32_t reserved;
} adit_statfs;

#define ADIT_STATFS_INIT { sizeof(adit_statfs), 0, 0, 0, 0, { 0, 0 }, 0, 0 }

int adit_volume_statfs(adit_volume *volume, adit_statfs *result);

/* The same volume on behalf of a user: operations through *user obey permission bits as Linux does,
 * and new files belong to that user. 0 is the superuser, who bypasses most checks. The handle of
 * adit_open_volume acts for the process's effective user and group, and bypasses all permission
 * checks: a process that can open the device has all rights on it. groups are the supplementary
 * groups, at most 65536. Close *user with adit_close_volume before the volume itself; files opened
 * through it may outlive it, and continue to act for the user. */
int adit_on_behalf_of(adit_volume *volume, uint32_t uid, uint32_t gid, const uint32_t *groups,
                      size_t count, adit_volume **user);

/* Makes everything on the volume durable. */
int adit_syncfs(adit_volume *volume);

#define ADIT_INFO_DATA_CHECKSUMS 0x1u /* every page of data has a checksum */
#define ADIT_INFO_SURVIVES 0x2u       /* unsynced data survives the death of this process */
#define ADIT_INFO_FAILED 0x4u         /* it takes no more changes: ADIT_TEXT_FAILURE */
#define ADIT_INFO_UNSAVED 0x8u        /* read-only: data of a killed process is shown */
/* Other processes can use it, too: it is in a server, or this process shares it, or did. */
#define ADIT_INFO_SHARED 0x10u

typedef struct adit_info {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t flags;        /* ADIT_INFO_... */
    uint64_t volume_id[2]; /* as in adit_statfs */
    uint64_t volume_bytes;
    uint64_t free_bytes;         /* after what is reserved for cached writes */
    uint64_t usable_bytes;       /* that a new file can take */
    uint64_t journal_bytes;      /* of the journal's ring */
    uint64_t journal_live_bytes; /* of it, that a recovery would read */
    uint64_t cluster_bytes;      /* preferred unit of allocation */
    uint64_t blobs;              /* files, directories and blobs */
    uint64_t epoch;              /* number of this opening */
    int64_t created_seconds;     /* since 1970 */
    uint64_t cache_bytes;        /* bound of the page cache, as it was given */
    uint64_t cache_huge_bytes;   /* of its memory, on huge pages that Adit asked for */
    uint64_t dirty_bytes;        /* in the cache, not yet written to their place */
    uint64_t workers;            /* that share the work on the volume */
} adit_info;

#define ADIT_INFO_INIT \
    { sizeof(adit_info), 0, { 0, 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Figures of an open volume. */
int adit_volume_info(adit_volume *volume, adit_info *result);

#define ADIT_TEXT_ADDRESS 1 /* that it was opened with */
#define ADIT_TEXT_LABEL 2
#define ADIT_TEXT_MAPPING 3 /* the file of the memory that survives this process */
#define ADIT_TEXT_FAILURE 4 /* why it takes no more changes */
#define ADIT_TEXT_UNSAVED 5 /* read-only: which data of a killed process is shown */

/* A text about the volume, without a zero at its end; empty if there is none. Returns the length
 * needed, and copies if it fits (-ERANGE if not); len 0 only asks. */
int64_t adit_volume_text(adit_volume *volume, int which, char *text, size_t len);

/* Makes the volume, and an image file, larger while it is in use. -EINVAL: size_bytes is smaller
 * than the volume; -ENOSPC: the device is smaller than size_bytes. */
int adit_grow(adit_volume *volume, uint64_t size_bytes);

#define ADIT_FINDING_METADATA 1u /* a problem of the structure; only what is set */
#define ADIT_FINDING_DATA 2u     /* lost data of a file */

/* A problem that was found. Later versions may add fields at the end, and kinds. */
typedef struct adit_finding {
    uint32_t struct_bytes; /* that the library has set */
    uint32_t kind;         /* ADIT_FINDING_... */
    const char *what;      /* a sentence, valid during the callback */
    const char *path;      /* of a file, if it has one and the finding is about data; else NULL */
    uint64_t ino;
    uint64_t offset;        /* of the lost range in the file */
    uint64_t len;           /* its bytes */
    uint64_t device_offset; /* where it is on the device */
} adit_finding;

typedef struct adit_health_options {
    uint32_t struct_bytes;
    uint32_t flags;            /* 0 */
    uint64_t bytes_per_second; /* of a scrub, on the average; default: as fast as it goes */
    /* Called for each problem, at the end and by the calling thread. It may call any function. */
    void (*finding)(void *user_data, const adit_finding *finding);
    /* Called now and then, with steps (of a scrub: bytes) done and their approximate total, by any
     * thread, one at a time. It must be quick and not call any function of this header. */
    void (*progress)(void *user_data, uint64_t done, uint64_t total);
    void *user_data;
} adit_health_options;

#define ADIT_HEALTH_OPTIONS_INIT { sizeof(adit_health_options), 0, 0, NULL, NULL, NULL }

typedef struct adit_check_result {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t reserved;
    uint64_t findings; /* 0: the volume is consistent */
    uint64_t directories;
    uint64_t files;   /* other inodes with a name */
    uint64_t orphans; /* without a name, but open */
    uint64_t blobs;   /* that are not files */
} adit_check_result;

#define ADIT_CHECK_RESULT_INIT { sizeof(adit_check_result), 0, 0, 0, 0, 0, 0 }

/* Checks all metadata of an open volume, and repairs nothing (`adit check --repair` does, with the
 * volume closed). Changes meanwhile make it begin again, and are -EBUSY after some attempts. options and
 * result may be NULL. 0 with findings, too. */
int adit_check(adit_volume *volume, const adit_health_options *options, adit_check_result *result);

/* adit_scrub_result.flags: the metadata could not be checked, since it was changed all the while. */
#define ADIT_SCRUB_METADATA_UNCHECKED 0x1u

typedef struct adit_scrub_result {
    uint32_t struct_bytes;    /* set by the caller */
    uint32_t flags;           /* ADIT_SCRUB_ */
    uint64_t findings;        /* 0: nothing is lost */
    uint64_t bytes;           /* of data that were read */
    uint64_t unchecked_bytes; /* of them without a checksum, on a volume with checksums */
} adit_scrub_result;

#define ADIT_SCRUB_RESULT_INIT { sizeof(adit_scrub_result), 0, 0, 0, 0 }

/* Checks all metadata, and reads all data from the device, while the volume is in use. Lost data
 * stays lost, and reading it is -EIO: write it again, or remove the file. 0 with findings, too, and with
 * metadata that could not be checked. */
int adit_scrub(adit_volume *volume, const adit_health_options *options, adit_scrub_result *result);

/* ------------------------------------------------------------------------------------- files */

/* Exactly one of the first three, and any of the others. */
#define ADIT_O_RDONLY 0x0u
#define ADIT_O_WRONLY 0x1u
#define ADIT_O_RDWR 0x2u
#define ADIT_O_CREAT 0x10u  /* create the file if it does not exist */
#define ADIT_O_EXCL 0x20u   /* with ADIT_O_CREAT: -EEXIST if it exists */
#define ADIT_O_TRUNC 0x40u  /* truncate it to zero bytes */
#define ADIT_O_APPEND 0x80u /* every write goes to the end, whatever its offset */
/* Past the cache: without a copy where offset, length and memory are multiples of 4096. */
#define ADIT_O_DIRECT 0x100u
#define ADIT_O_DSYNC 0x200u     /* each write ends with an fdatasync of its own */
#define ADIT_O_SYNC 0x400u      /* each write ends with an fsync of its own */
#define ADIT_O_DIRECTORY 0x800u /* -ENOTDIR unless it is one; ADIT_O_RDONLY only */
/* -ELOOP if the path ends with a symbolic link; with ADIT_O_PATH, the link itself is opened. */
#define ADIT_O_NOFOLLOW 0x1000u
/* A handle that keeps an inode of any kind alive, for adit_fstat; all other calls are -EBADF. */
#define ADIT_O_PATH 0x2000u
#define ADIT_O_NOATIME 0x4000u /* reading leaves the access time; -EPERM unless the user owns it */

/* mode: permission bits of a new file, like 0644; adit_on_behalf_of says when they are checked.
 * Pipes, sockets and devices can be opened with ADIT_O_PATH only: -ENXIO.
 * A file whose last name is removed exists until it is closed. */
int adit_open(adit_volume *volume, const char *path, unsigned flags, unsigned mode,
              adit_file **file);

/* Makes a small file durably: opens it, writes its content, and syncs as adit_fsync, so that content
 * and name survive a power cut. One operation, and up to 1 MiB one message to a server. flags have
 * write access and ADIT_O_CREAT | ADIT_O_EXCL, or ADIT_O_TRUNC; else -EINVAL. file may be NULL: the
 * file is closed again.
 * It is not atomic. After an error of the write or the sync the file is there: empty after -ENOSPC,
 * with any part of its content after -EIO. To replace a file atomically, make another one and rename
 * it. */
int adit_create_and_sync(adit_volume *volume, const char *path, unsigned flags, unsigned mode,
                         const void *data, size_t len, adit_file **file);

/* Closes without a sync. The handle is gone, even after an error. */
int adit_close(adit_file *file);

/* At most len bytes from offset on; fewer at the end of the file, 0 beyond it. */
int64_t adit_pread(adit_file *file, void *data, size_t len, uint64_t offset);
int64_t adit_preadv(adit_file *file, const struct iovec *vector, int count, uint64_t offset);

/* All len bytes or an error; never fewer. -ENOSPC comes before anything was written; after -EIO or
 * -ENOMEM the bytes before the failure may be written. */
int64_t adit_pwrite(adit_file *file, const void *data, size_t len, uint64_t offset);

#define ADIT_WRITE_DSYNC 0x1u /* the call ends with an fdatasync */

/* count is at most 1024 here and in adit_preadv and adit_appendv. */
int64_t adit_pwritev(adit_file *file, const struct iovec *vector, int count, uint64_t offset,
                     unsigned flags);

/* Writes at the end; atomic with respect to other appends. *offset (may be NULL) gets the position
 * of the data. -E2BIG: more than 64 MiB, on a volume in a server; nothing has changed. */
int64_t adit_append(adit_file *file, const void *data, size_t len, uint64_t *offset);
int64_t adit_appendv(adit_file *file, const struct iovec *vector, int count, unsigned flags,
                     uint64_t *offset);

/* Writes count ranges, later ones over earlier ones: all of them or none, across any failure. The
 * next fdatasync makes them durable, together with all earlier writes to the file. With
 * ADIT_WRITE_DSYNC the call itself does so; if only that part fails, readers see the ranges, but a
 * power cut may lose them, as a whole. A concurrent reader sees each page of 4096 bytes before or
 * after the write, but may see some pages before and others after it.
 * -E2BIG: more than adit_atomic_write_max, or more than 16 separate holes or preallocated ranges
 * before the end of the file; -EINVAL: the file was opened with ADIT_O_APPEND. After both, and
 * -ENOSPC, nothing has changed. */
typedef struct adit_write_range {
    uint64_t offset;
    const void *data;
    size_t len;
} adit_write_range;

int adit_pwrite_atomic(adit_file *file, const adit_write_range *ranges, size_t count,
                       unsigned flags);

/* Most bytes that one adit_pwrite_atomic may change; each page of 4096 bytes that it touches counts
 * as a whole. It depends on the size of the journal: about 250 KiB to 1 MiB. */
int64_t adit_atomic_write_max(adit_file *file);

/* Several reads of one file that overlap in time; their memory must not overlap. */
typedef struct adit_read_request {
    uint64_t offset;
    void *data;
    size_t len;
    int64_t result; /* out: the result of an adit_pread */
} adit_read_request;

/* 0 when every request has its result (which may be an error). */
int adit_pread_many(adit_file *file, adit_read_request *requests, size_t count);

int adit_fsync(adit_file *file);     /* also times and mode */
int adit_fdatasync(adit_file *file); /* everything needed to read the data back */

/* Starts to write the file's dirty data to the device, in the background. Promises nothing about
 * durability; a later sync has less to write. */
int adit_start_write_back(adit_file *file);

/* A smaller size cuts off data, also preallocated space; a larger one adds zeros. */
int adit_ftruncate(adit_file *file, uint64_t size);

/* Mode 0 allocates the range and makes the file at least that long: later writes there need no
 * space. */
#define ADIT_FALLOC_KEEP_SIZE 0x1u  /* allocate without changing the size */
#define ADIT_FALLOC_PUNCH_HOLE 0x2u /* free the range's space; it reads as zeros, size unchanged */
/* The range reads as zeros and stays or becomes allocated; with KEEP_SIZE or without it. */
#define ADIT_FALLOC_ZERO_RANGE 0x4u

int adit_fallocate(adit_file *file, unsigned mode, uint64_t offset, uint64_t len);

/* Position of the next data, or the next hole, from offset on, like SEEK_DATA and SEEK_HOLE.
 * Preallocated space is a hole, and so is the end of the file. -ENXIO at and behind the end, and if
 * no data follows. */
int64_t adit_next_data(adit_file *file, uint64_t offset);
int64_t adit_next_hole(adit_file *file, uint64_t offset);

/* Copies up to len bytes within a volume, and returns their number: fewer at the end of the source,
 * after 1 GiB, and if an error came after a part. Not atomic. Skips holes. -EINVAL: the two ranges
 * overlap in one file; -EBADF: from can't read, or to can't write or has ADIT_O_APPEND; -EXDEV: the
 * files are on different volumes. */
int64_t adit_copy_range(adit_file *from, uint64_t offset, adit_file *to, uint64_t to_offset,
                        uint64_t len);

typedef struct adit_stat {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t mode;         /* type and permissions, for S_ISREG() and the like */
    uint64_t ino;          /* a file keeps ino and generation as long as it lives; */
    uint64_t generation;   /* no two files ever share both */
    uint64_t size_bytes;
    uint64_t allocated_bytes;
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    uint32_t reserved;
    adit_time atime; /* last access; adit_utimens changes it, reading does not */
    adit_time mtime; /* last change of the content */
    adit_time ctime; /* last change of content or attributes */
    adit_time btime; /* creation */
    uint64_t rdev;   /* number of a device node */
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

#define ADIT_LOCK_POSIX 16 /* or-ed: the lock belongs to owner, not to the handle */

/* fcntl(2)'s lock of a range of bytes: advisory, and independent of adit_flock. */
typedef struct adit_range_lock {
    uint64_t offset;   /* may lie beyond the end of the file */
    uint64_t len;      /* 0: to the end of the file, however it grows */
    uint64_t owner;    /* with ADIT_LOCK_POSIX: identifies the owner */
    int32_t pid;       /* with ADIT_LOCK_POSIX: reported by adit_test_lock; else -1 there */
    int32_t operation; /* ADIT_LOCK_... */
} adit_range_lock;

/* Locks or unlocks; replaces the owner's locks in the range. -EAGAIN instead of waiting with
 * ADIT_LOCK_NONBLOCKING; -EDEADLK: POSIX owners would wait for each other in a circle; -EBADF: the
 * handle can't read (shared) or write (exclusive); -EINVAL, -EOVERFLOW: a range beyond 2^63 - 1;
 * -ENOLCK: more than 4096 locks. Closing a handle releases its locks. */
int adit_lock_range(adit_file *file, const adit_range_lock *lock);

/* 1 and in *blocker a lock that conflicts with this one, or 0. */
int adit_test_lock(adit_file *file, const adit_range_lock *lock, adit_range_lock *blocker);

/* Releases all locks of a POSIX owner on the file. Closing a handle does not release them. */
int adit_release_locks(adit_file *file, uint64_t owner);

/* ----------------------------------------------------------------------------------- mappings */

/* Maps a range of a file as memory of all processes that map it: a store is seen at once by their
 * loads and by adit_pread, an adit_pwrite by all loads. It survives the death of the process that
 * stored, and that of the server. What was stored is written to the file by syncs, and when a
 * handle that has mapped it is closed, also by the death of its process. It is for indexes and
 * other small files: see docs/decisions/0030-shared-mappings.md.
 *
 * offset is a multiple of 4096. *memory is readable, and writable if the file was opened so, until
 * adit_close(file). Behind the end of the file it is zero, and what is stored there is lost when
 * the file grows: adit_fallocate first. A child of fork() has the memory as well.
 *
 * A session that comes back too late to the next server has the memory of nobody else. Then every
 * call on the file is -EBADF, as after the loss of a lock; loads don't tell. So take a lock of the
 * file before you rely on what you load.
 *
 * -EOPNOTSUPP: no other process can have the volume (no ADIT_INFO_SHARED), so memory of this one
 * does; -EACCES: the handle can't read; -EINVAL: len is 0; -ENODEV: a directory; -EMFILE: a session
 * has mapped 1024 files; -ENFILE, -ENOMEM: the server has no descriptor, or no room in /dev/shm. */
int adit_map_shared(adit_file *file, uint64_t offset, size_t len, void **memory);

/* ----------------------------------------------------------------------------------- buffers */

/* Memory of Adit's that the caller holds; the struct itself is the caller's. It may be moved, but
 * only one copy of it is to be released. An empty one has data NULL and len 0. */
typedef struct adit_buffer {
    void *data; /* read-only if borrowed */
    size_t len;
    uint64_t opaque[6];
} adit_buffer;

/* A read without a copy: *buffer holds the cache's own memory, which keeps this content until it is
 * released, also if the file is overwritten. Returns its length: at least 1 (0 only at or beyond
 * the end), at most len, and at most the rest of one page. Many buffers occupy much cache. */
int64_t adit_pread_borrow(adit_file *file, size_t len, uint64_t offset, adit_buffer *buffer);

/* Memory for the caller's use, aligned to 4096 and fit for DMA: with ADIT_O_DIRECT, adit_pread and
 * adit_pwrite move data between it and the device without a copy. Up to 1 MiB comes from a pool of
 * 64 MiB, and is not cleared: -ENOMEM while all of it is in use. Larger memory comes from the
 * system: -ENOMEM if it has none, -EINVAL from 4 GiB on. */
int adit_buffer_allocate(adit_volume *volume, size_t len, adit_buffer *buffer);

void adit_buffer_release(adit_buffer *buffer);

/* ------------------------------------------------------------------------------ asynchronous
 *
 * A submitted operation runs to its end, independently of its handle; memory passed to it must stay
 * unchanged until then. Completion is reported in one of two ways; the other argument is NULL:
 *   done   is called once with context and the result, by the thread that completes the operation
 *          (possibly the submitting one, before the call returns). It must not block or call Adit.
 *   op     gets a handle for adit_op_poll and adit_op_wait, to be released.
 * The result is that of the blocking twin (of adit_append_submit: the offset). A submission that
 * returns an error calls nothing. -EINVAL: a write or append of 4 GiB or more. */

typedef void (*adit_done)(void *context, int64_t result);

int adit_pread_submit(adit_file *file, void *data, size_t len, uint64_t offset,
                      adit_done done, void *context, adit_op **op);
int adit_pwrite_submit(adit_file *file, const void *data, size_t len, uint64_t offset,
                       adit_done done, void *context, adit_op **op);
int adit_append_submit(adit_file *file, const void *data, size_t len,
                       adit_done done, void *context, adit_op **op);
int adit_fsync_submit(adit_file *file, adit_done done, void *context, adit_op **op);
int adit_fdatasync_submit(adit_file *file, adit_done done, void *context, adit_op **op);

/* 1 and *result if the operation is done; else 0, after all progress that is possible without
 * waiting. Poll in a loop until it is done, or wait for it or release it: nobody else is woken for
 * its work until then, nor for that of another thread's operation which this poll advanced. */
int adit_op_poll(adit_op *op, int64_t *result);

/* Waits for the result and returns it; may be called again. */
int64_t adit_op_wait(adit_op *op);

/* Waits until at least one of the operations is done, at most timeout_ns nanoseconds (below 0: no
 * limit; 0: makes all progress that is possible without waiting). Returns how many are done, 0
 * after the timeout. done (may be NULL) gets 1 or 0 for each; adit_op_wait then returns the result
 * of one that is done without waiting. NULLs in ops are passed over; -EINVAL if there is nothing
 * else. The time that a call takes grows with count: use a queue for hundreds of operations. */
int64_t adit_op_wait_any(adit_op *const *ops, size_t count, uint8_t *done, int64_t timeout_ns);

/* Releases the handle; the operation goes on. */
void adit_op_release(adit_op *op);

/* ----------------------------------------------------------------------------------- queues
 *
 * A completion queue: many operations are submitted to it, and any thread waits for any of them. It
 * belongs to a volume. A thread in adit_queue_wait or adit_queue_run drives that volume itself: it
 * reaps its own completions, and no other thread is woken for them. There is no thread of the
 * queue's.
 *
 * Nothing is cancelled: an operation that was submitted runs to its end, and its memory must stay
 * until its completion was taken, or adit_queue_destroy has returned.
 *
 * Fork: in a child every call is -EBADF. The child inherits the descriptor of adit_queue_eventfd
 * and must not read it. */

typedef struct adit_queue_options {
    uint32_t struct_bytes;
    uint32_t flags;       /* 0 */
    uint32_t entries_max; /* operations, and completions not taken; default: 65536 */
    uint32_t reserved;
} adit_queue_options;

#define ADIT_QUEUE_OPTIONS_INIT { sizeof(adit_queue_options), 0, 0, 0 }

/* options may be NULL. A queue keeps its volume open: adit_close_volume is -EBUSY before
 * adit_queue_destroy. */
int adit_queue_create(adit_volume *volume, const adit_queue_options *options, adit_queue **queue);

#define ADIT_OP_READ 1u
#define ADIT_OP_WRITE 2u
#define ADIT_OP_APPEND 3u /* the result is the offset of the data */
#define ADIT_OP_FSYNC 4u
#define ADIT_OP_FDATASYNC 5u

/* A request is read during adit_queue_submit only; zero what is not used. */
typedef struct adit_request {
    uint32_t operation; /* ADIT_OP_... */
    uint32_t flags;     /* 0 */
    adit_file *file;    /* also of another volume: its own thread then drives the operation. It may
                         * be closed at once; the operation keeps it open. */
    void *data;         /* read from, or written to, until the completion was taken */
    size_t len;
    uint64_t offset;
    adit_done done;     /* for adit_queue_run; or NULL */
    void *user_data;
    uint64_t reserved;
} adit_request;

/* Submits in order. Returns how many, or the error of the first one: -EAGAIN if entries_max is
 * reached, -EINVAL for an impossible request. Errors of an operation itself are in its completion,
 * which comes exactly once. */
int64_t adit_queue_submit(adit_queue *queue, const adit_request *requests, size_t count);

typedef struct adit_completion {
    void *user_data;
    int64_t result; /* of the blocking twin of the operation */
    adit_done done;
    uint64_t reserved;
} adit_completion;

/* Takes min to max completions, in the order in which the operations ended, and returns their
 * number. Waits for the first min of them, at most timeout_ns nanoseconds (below 0: no limit); after
 * that it takes what there is, even none. With a min or timeout_ns of 0 it makes all progress that
 * is possible without waiting. Calls no callback. A call that waits for more than was submitted
 * waits until others submit or post.
 * Several threads may wait: each completion goes to one of them, the first in line whose min is
 * reached, and only that one is woken. */
int64_t adit_queue_wait(adit_queue *queue, adit_completion *completions, size_t min, size_t max,
                        int64_t timeout_ns);

/* The same, and calls done(user_data, result) of each completion that has one, in this thread, one
 * after the other. No lock of Adit's is held: a callback may call any function except
 * adit_queue_destroy, also submit to the queue. What it submits never completes inside it, but in
 * a later turn of this call or of the next one, so that chains don't nest. Callbacks run nowhere
 * else, hence never after the queue's end. */
int64_t adit_queue_run(adit_queue *queue, size_t min, size_t max, int64_t timeout_ns);

/* Adds a completion of no operation, to wake a thread that waits, or to have it run done. */
int adit_queue_post(adit_queue *queue, adit_done done, void *user_data, int64_t result);

/* Operations in flight, and completions not taken; 0 in a signal handler that interrupted Adit. */
int64_t adit_queue_pending(adit_queue *queue);

/* A descriptor for poll and epoll; the same one each time, closed by adit_queue_destroy. It is
 * readable while there are completions. Level-triggered, it stays readable until all are taken.
 * Edge-triggered, it reports whenever the queue stops being empty: take completions until there are
 * none. What a thread in adit_queue_wait takes doesn't make it readable. Don't read or write it.
 * While the program sleeps in epoll_wait, Adit's background thread of the volume drives. epoll_wait
 * may end with EINTR though no signal came, as with any io_uring: wait again. */
int adit_queue_eventfd(adit_queue *queue);

/* Waits for the operations in flight, drops their completions, and calls no callback. No other call
 * on the queue may be running. */
int adit_queue_destroy(adit_queue *queue);

/* ------------------------------------------------------------------------------------- names */

int adit_stat_path(adit_volume *volume, const char *path, adit_stat *result);
int adit_truncate(adit_volume *volume, const char *path, uint64_t size);

/* Opens, fsyncs and closes: a directory's names, or a file. */
int adit_fsync_path(adit_volume *volume, const char *path);

int adit_link(adit_volume *volume, const char *existing, const char *path);
int adit_unlink(adit_volume *volume, const char *path);

#define ADIT_RENAME_NOREPLACE 0x1u /* -EEXIST instead of replacing */
#define ADIT_RENAME_EXCHANGE 0x2u  /* swap the two; both must exist */

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
    uint64_t cookie;  /* adit_seekdir(dir, cookie) continues after this entry, in any process */
    const char *name; /* zero-terminated; valid until the next call on this adit_dir */
    uint32_t name_len;
    uint32_t type; /* ADIT_TYPE_... */
} adit_dirent;

int adit_opendir(adit_volume *volume, const char *path, adit_dir **dir);

/* 1 and *entry, or 0 at the end. Leaves out '.' and '..'. An entry that exists during the whole
 * reading is returned exactly once; one that is created or removed meanwhile, at most once. */
int adit_readdir(adit_dir *dir, adit_dirent *entry);

/* Cookie 0 starts again. */
int adit_seekdir(adit_dir *dir, uint64_t cookie);
int adit_closedir(adit_dir *dir);

/* -------------------------------------------------------------------------------- attributes
 *
 * With ADIT_NOFOLLOW, a path that ends with a symbolic link means the link itself, else its target.
 * Errnos are as in Linux's manual pages of the functions with these names. */

#define ADIT_NOFOLLOW 0x1u

/* As adit_stat_path, of a symbolic link itself. */
int adit_lstat_path(adit_volume *volume, const char *path, adit_stat *result);

/* A symbolic link to target, 1 to 4095 bytes; the target need not exist. */
int adit_symlink(adit_volume *volume, const char *target, const char *path);

/* The target of a link, without a zero at its end. Returns the length needed, and copies if it fits
 * (-ERANGE if not); len 0 only asks. */
int64_t adit_readlink(adit_volume *volume, const char *path, char *target, size_t len);

/* Makes a pipe, socket, device or empty file: mode has its type (S_IFIFO ...) and permission bits.
 * Adit stores such nodes and their attributes; they do nothing. */
int adit_mknod(adit_volume *volume, const char *path, unsigned mode, uint64_t device);

#define ADIT_X_OK 1u
#define ADIT_W_OK 2u
#define ADIT_R_OK 4u

/* -EACCES unless the user of this handle has all of these rights; 0 only checks for existence. */
int adit_access(adit_volume *volume, const char *path, unsigned wanted);

int adit_chmod(adit_volume *volume, const char *path, unsigned mode, unsigned flags);
int adit_fchmod(adit_file *file, unsigned mode);

/* UINT32_MAX leaves the user or group unchanged. */
int adit_chown(adit_volume *volume, const char *path, uint32_t uid, uint32_t gid, unsigned flags);
int adit_fchown(adit_file *file, uint32_t uid, uint32_t gid);

#define ADIT_TIME_NOW 0x3fffffffu  /* as nanoseconds: the time of the call */
#define ADIT_TIME_OMIT 0x3ffffffeu /* likewise: leave it unchanged */

/* Two times, of the last access and of the last change of the content. NULL: both now. */
int adit_utimens(adit_volume *volume, const char *path, const adit_time *times, unsigned flags);
int adit_futimens(adit_file *file, const adit_time *times);

#define ADIT_XATTR_CREATE 0x2u  /* -EEXIST if it exists */
#define ADIT_XATTR_REPLACE 0x4u /* -ENODATA if it does not */

/* Extended attributes. Names begin with user., trusted. or security., or are those of access
 * control lists, which Adit stores and does not enforce. All attributes of a file have about 4000
 * bytes together: -ENOSPC. get and list return the length needed, and copy if it fits (-ERANGE if
 * not); len 0 only asks. */
int adit_set_xattr(adit_volume *volume, const char *path, const char *name, const void *value,
                   size_t len, unsigned flags);
int64_t adit_get_xattr(adit_volume *volume, const char *path, const char *name, void *value,
                       size_t len, unsigned flags);
int adit_remove_xattr(adit_volume *volume, const char *path, const char *name, unsigned flags);
int64_t adit_list_xattrs(adit_volume *volume, const char *path, char *names, size_t len,
                         unsigned flags);
int adit_fset_xattr(adit_file *file, const char *name, const void *value, size_t len,
                    unsigned flags);
int64_t adit_fget_xattr(adit_file *file, const char *name, void *value, size_t len);
int adit_fremove_xattr(adit_file *file, const char *name);
int64_t adit_flist_xattrs(adit_file *file, char *names, size_t len); /* each with its zero */

/* ------------------------------------------------------------------------------------- blobs
 *
 * A blob is an array of pages without a name, found by its id. Every file is one, too. */

typedef struct adit_blob_id {
    uint64_t slot;       /* never 0 */
    uint64_t generation; /* no other blob ever gets the id of a deleted one */
} adit_blob_id;

/* Creates an empty blob. Like all changes of blobs, this survives a power cut after adit_blob_sync
 * or adit_syncfs. */
int adit_blob_create(adit_volume *volume, adit_blob_id *id);

/* -ENOENT: no blob has that id (any more). */
int adit_blob_open(adit_volume *volume, const adit_blob_id *id, adit_blob **blob);
int adit_blob_close(adit_blob *blob);

/* Deletes it and frees its space. -EBUSY while it is open. */
int adit_blob_delete(adit_volume *volume, const adit_blob_id *id);

int64_t adit_blob_size(adit_blob *blob);

/* A smaller size cuts off data; a larger one adds zeros, which take no space. */
int adit_blob_resize(adit_blob *blob, uint64_t size);

int64_t adit_blob_read(adit_blob *blob, void *data, size_t len, uint64_t offset);

/* All or an error. A write beyond the end makes the blob longer. */
int64_t adit_blob_write(adit_blob *blob, const void *data, size_t len, uint64_t offset);

/* Data, size and attributes survive a power cut. */
int adit_blob_sync(adit_blob *blob);

/* Extended attributes. A name has 1 to 255 bytes; names and values of a blob share one page:
 * -ENOSPC if they don't fit. get and list return the length needed, and copy if it fits (-ERANGE if
 * not); len 0 only asks. */
int adit_blob_set_xattr(adit_blob *blob, const char *name, const void *value, size_t len);
int64_t adit_blob_get_xattr(adit_blob *blob, const char *name, void *value, size_t len);
int adit_blob_remove_xattr(adit_blob *blob, const char *name); /* -ENODATA if there is none */
int64_t adit_blob_list_xattrs(adit_blob *blob, char *names, size_t len); /* each with its zero */

/* Iterates over all blobs that are not files or directories: *id is the previous one ({0, 0} at the
 * beginning) and becomes the next one. 1, or 0 after the last. */
int adit_blob_next(adit_volume *volume, adit_blob_id *id);

#ifdef __cplusplus
}
#endif

#endif /* ADIT_H */
