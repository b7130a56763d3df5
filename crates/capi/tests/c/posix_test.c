/*
 * Links, nodes, rights, owners, times, extended attributes and sparse files from C, as adit.h
 * promises.
 */
#define _GNU_SOURCE
#include "adit.h"
#include "claims.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const uint32_t SAME = UINT32_MAX;

static adit_file *must_open(adit_volume *volume, const char *path, unsigned flags)
{
    adit_file *file = NULL;
    IS(adit_open(volume, path, flags, 0644, &file), 0);
    return file;
}

static void symbolic_links_say_what_they_were_told(adit_volume *volume)
{
    char target[16];
    char long_target[4096];
    adit_stat stat = ADIT_STAT_INIT;
    adit_file *file = NULL;
    IS(adit_close(must_open(volume, "/f", ADIT_O_RDWR | ADIT_O_CREAT)), 0);
    IS(adit_symlink(volume, "f", "/l"), 0);
    IS(adit_symlink(volume, "f", "/l"), -EEXIST);
    IS(adit_symlink(volume, "", "/m"), -ENOENT);
    IS(adit_readlink(volume, "/l", NULL, 0), 1);
    IS(adit_readlink(volume, "/l", target, sizeof(target)), 1);
    HOLDS(target[0] == 'f');
    IS(adit_readlink(volume, "/f", target, sizeof(target)), -EINVAL);
    memset(long_target, 'x', 4095);
    long_target[4095] = 0;
    IS(adit_symlink(volume, long_target, "/long"), 0);
    IS(adit_readlink(volume, "/long", target, sizeof(target)), -ERANGE);
    IS(adit_readlink(volume, "/long", long_target, sizeof(long_target)), 4095);
    IS(adit_lstat_path(volume, "/l", &stat), 0);
    HOLDS(S_ISLNK(stat.mode) && stat.size_bytes == 1);
    IS(adit_stat_path(volume, "/l", &stat), 0);
    HOLDS(S_ISREG(stat.mode));
    IS(adit_open(volume, "/l", ADIT_O_NOFOLLOW, 0, &file), -ELOOP);
    file = must_open(volume, "/l", ADIT_O_NOFOLLOW | ADIT_O_PATH);
    IS(adit_fstat(file, &stat), 0);
    HOLDS(S_ISLNK(stat.mode));
    IS(adit_fchmod(file, 0600), -EBADF);
    IS(adit_close(file), 0);
}

static void nodes_are_kept_and_shown(adit_volume *volume)
{
    static const struct {
        const char *name;
        unsigned mode;
        uint32_t type;
    } kinds[] = {
        {"/n/fifo", S_IFIFO | 0640, ADIT_TYPE_FIFO},
        {"/n/sock", S_IFSOCK | 0640, ADIT_TYPE_SOCKET},
        {"/n/char", S_IFCHR | 0640, ADIT_TYPE_CHAR_DEVICE},
        {"/n/block", S_IFBLK | 0640, ADIT_TYPE_BLOCK_DEVICE},
        {"/n/file", S_IFREG | 0640, ADIT_TYPE_FILE},
    };
    const size_t count = sizeof(kinds) / sizeof(kinds[0]);
    adit_stat stat = ADIT_STAT_INIT;
    adit_dir *dir = NULL;
    adit_dirent entry;
    adit_file *file = NULL;
    size_t seen = 0;
    IS(adit_mkdir(volume, "/n", 0755), 0);
    for (size_t i = 0; i < count; ++i) {
        const int is_device = S_ISCHR(kinds[i].mode) || S_ISBLK(kinds[i].mode);
        IS(adit_mknod(volume, kinds[i].name, kinds[i].mode, 0x0102), 0);
        IS(adit_mknod(volume, kinds[i].name, kinds[i].mode, 0x0102), -EEXIST);
        IS(adit_stat_path(volume, kinds[i].name, &stat), 0);
        HOLDS(stat.mode == kinds[i].mode && stat.rdev == (is_device ? 0x0102u : 0u));
    }
    IS(adit_open(volume, "/n/fifo", ADIT_O_RDONLY, 0, &file), -ENXIO);
    IS(adit_mknod(volume, "/n/d", S_IFDIR, 0), -EPERM);
    IS(adit_mknod(volume, "/n/l", S_IFLNK, 0), -EINVAL);
    IS(adit_opendir(volume, "/n", &dir), 0);
    while (adit_readdir(dir, &entry) == 1) {
        for (size_t i = 0; i < count; ++i) {
            if (strcmp(entry.name, kinds[i].name + 3) == 0) {
                HOLDS(entry.type == kinds[i].type);
                ++seen;
            }
        }
    }
    HOLDS(seen == count);
    IS(adit_closedir(dir), 0);
}

static void a_handle_on_behalf_of_a_user_obeys(adit_volume *volume)
{
    const uint32_t groups[] = {30, 20};
    adit_volume *user = NULL;
    adit_volume *member = NULL;
    adit_file *file = NULL;
    adit_stat stat = ADIT_STAT_INIT;
    IS(adit_on_behalf_of(volume, 10, 10, NULL, 0, NULL), -EINVAL);
    IS(adit_on_behalf_of(volume, 10, 10, NULL, 1, &user), -EINVAL);
    IS(adit_on_behalf_of(volume, 10, 10, NULL, 0, &user), 0);
    IS(adit_on_behalf_of(volume, 11, 11, groups, 2, &member), 0);
    IS(adit_mkdir(volume, "/p", 0755), 0);
    IS(adit_mkdir(user, "/p/x", 0755), -EACCES);
    IS(adit_access(user, "/p", ADIT_W_OK), -EACCES);
    IS(adit_access(user, "/p", ADIT_R_OK | ADIT_X_OK), 0);
    IS(adit_access(user, "/missing", 0), -ENOENT);
    IS(adit_access(user, "/p", 8), -EINVAL);
    IS(adit_chmod(user, "/p", 0777, 0), -EPERM);
    IS(adit_chmod(volume, "/p", 0777, 0), 0);
    IS(adit_chmod(volume, "/p", 0777, 0x80), -EINVAL);
    IS(adit_mkdir(user, "/p/x", 0755), 0);
    IS(adit_stat_path(volume, "/p/x", &stat), 0);
    HOLDS(stat.uid == 10 && stat.gid == 10);
    IS(adit_chown(user, "/p/x", 11, SAME, 0), -EPERM);
    IS(adit_chown(volume, "/p/x", SAME, 20, 0), 0);
    IS(adit_chmod(user, "/p/x", 0750, 0), 0);
    IS(adit_access(member, "/p/x", ADIT_R_OK), 0);
    IS(adit_access(member, "/p/x", ADIT_W_OK), -EACCES);
    IS(adit_mknod(user, "/p/dev", S_IFBLK | 0600, 1), -EPERM);
    /* What was opened acts for who opened it, also when the handle is gone. */
    file = must_open(user, "/p/f", ADIT_O_RDWR | ADIT_O_CREAT);
    IS(adit_close_volume(user), 0);
    IS(adit_fchown(file, 0, SAME), -EPERM);
    IS(adit_fchmod(file, 0600), 0);
    IS(adit_open(member, "/p/f", ADIT_O_RDONLY, 0, &file), -EACCES);
    IS(adit_fstat(file, &stat), 0);
    HOLDS(stat.uid == 10 && (stat.mode & 07777) == 0600);
    IS(adit_fchown(file, SAME, SAME), 0);
    IS(adit_close(file), 0);
    IS(adit_close_volume(member), 0);
    IS(adit_chown(volume, "/l", 7, 8, ADIT_NOFOLLOW), 0);
    IS(adit_lstat_path(volume, "/l", &stat), 0);
    HOLDS(stat.uid == 7 && stat.gid == 8);
    IS(adit_chmod(volume, "/l", 0600, ADIT_NOFOLLOW), -EOPNOTSUPP);
}

static void times_are_set_to_the_nanosecond(adit_volume *volume)
{
    adit_time times[2] = {{1000, 1, 0}, {-5, 999999999, 0}};
    adit_stat stat = ADIT_STAT_INIT;
    adit_file *file = must_open(volume, "/f", ADIT_O_RDONLY);
    IS(adit_utimens(volume, "/f", times, 0), 0);
    IS(adit_stat_path(volume, "/f", &stat), 0);
    HOLDS(stat.atime.seconds == 1000 && stat.atime.nanoseconds == 1);
    HOLDS(stat.mtime.seconds == -5 && stat.mtime.nanoseconds == 999999999);
    times[0].nanoseconds = ADIT_TIME_OMIT;
    times[1].nanoseconds = ADIT_TIME_NOW;
    IS(adit_futimens(file, times), 0);
    IS(adit_fstat(file, &stat), 0);
    HOLDS(stat.atime.seconds == 1000 && stat.mtime.seconds > 1000);
    times[0].nanoseconds = 1000000000;
    IS(adit_utimens(volume, "/f", times, 0), -EINVAL);
    IS(adit_utimens(volume, "/missing", NULL, 0), -ENOENT);
    IS(adit_futimens(file, NULL), 0);
    IS(adit_fstat(file, &stat), 0);
    HOLDS(stat.atime.seconds > 1000);
    times[0].nanoseconds = times[1].nanoseconds = 3;
    IS(adit_utimens(volume, "/l", times, ADIT_NOFOLLOW), 0);
    IS(adit_lstat_path(volume, "/l", &stat), 0);
    HOLDS(stat.mtime.seconds == -5 && stat.mtime.nanoseconds == 3);
    IS(adit_close(file), 0);
}

static void extended_attributes_are_kept_by_path_and_by_file(adit_volume *volume)
{
    char value[16];
    char names[64];
    adit_file *file = must_open(volume, "/f", ADIT_O_RDONLY);
    IS(adit_set_xattr(volume, "/l", "user.a", "one", 3, 0), 0); /* of /f */
    IS(adit_fget_xattr(file, "user.a", value, sizeof(value)), 3);
    HOLDS(memcmp(value, "one", 3) == 0);
    IS(adit_get_xattr(volume, "/f", "user.a", NULL, 0, 0), 3);
    IS(adit_get_xattr(volume, "/f", "user.a", value, 2, 0), -ERANGE);
    IS(adit_get_xattr(volume, "/l", "user.a", value, sizeof(value), ADIT_NOFOLLOW), -ENODATA);
    IS(adit_set_xattr(volume, "/f", "user.a", "two", 3, ADIT_XATTR_CREATE), -EEXIST);
    IS(adit_set_xattr(volume, "/f", "user.b", "two", 3, ADIT_XATTR_REPLACE), -ENODATA);
    IS(adit_set_xattr(volume, "/f", "user.b", "two", 3, ADIT_XATTR_CREATE | ADIT_XATTR_REPLACE), -EINVAL);
    IS(adit_set_xattr(volume, "/f", "unknown.b", "two", 3, 0), -EOPNOTSUPP);
    IS(adit_fset_xattr(file, "user.b", NULL, 0, ADIT_XATTR_CREATE), 0);
    IS(adit_fset_xattr(file, "user.b", "x", 1, ADIT_NOFOLLOW), -EINVAL);
    IS(adit_set_xattr(volume, "/l", "trusted.l", "link", 4, ADIT_NOFOLLOW), 0);
    IS(adit_list_xattrs(volume, "/l", names, sizeof(names), ADIT_NOFOLLOW), 10);
    HOLDS(strcmp(names, "trusted.l") == 0);
    IS(adit_flist_xattrs(file, NULL, 0), 14);
    IS(adit_list_xattrs(volume, "/f", names, sizeof(names), 0), 14);
    IS(adit_fremove_xattr(file, "user.a"), 0);
    IS(adit_remove_xattr(volume, "/f", "user.a", 0), -ENODATA);
    IS(adit_remove_xattr(volume, "/l", "user.b", 0), 0);
    IS(adit_remove_xattr(volume, "/l", "trusted.l", ADIT_NOFOLLOW), 0);
    IS(adit_close(file), 0);
}

static void sparse_files_are_told_apart_and_copied(adit_volume *volume)
{
    adit_volume *other = NULL;
    adit_file *from = must_open(volume, "/sparse", ADIT_O_RDWR | ADIT_O_CREAT);
    adit_file *to = must_open(volume, "/copy", ADIT_O_RDWR | ADIT_O_CREAT);
    adit_file *foreign = NULL;
    adit_stat stat = ADIT_STAT_INIT;
    char byte = 0;
    IS(adit_next_data(from, 0), -ENXIO);
    IS(adit_pwrite(from, "x", 1, 1 << 20), 1);
    IS(adit_next_data(from, 5), 1 << 20);
    IS(adit_next_hole(from, 5), 5);
    IS(adit_next_hole(from, 1 << 20), (1 << 20) + 1);
    IS(adit_copy_range(from, 0, to, 0, UINT64_MAX), (1 << 20) + 1);
    IS(adit_fstat(to, &stat), 0);
    HOLDS(stat.size_bytes == (1 << 20) + 1 && stat.allocated_bytes <= 4 * 4096);
    IS(adit_pread(to, &byte, 1, 1 << 20), 1);
    HOLDS(byte == 'x');
    IS(adit_copy_range(from, 0, from, 10, 20), -EINVAL);
    IS(adit_copy_range(from, 1 << 20, from, 0, 20), 1);
    IS(adit_copy_range(from, 1 << 21, to, 0, 20), 0);
    IS(adit_open_volume("mem:64M", NULL, &other), 0);
    foreign = must_open(other, "/f", ADIT_O_RDWR | ADIT_O_CREAT);
    IS(adit_copy_range(from, 0, foreign, 0, 20), -EXDEV);
    IS(adit_close(foreign), 0);
    IS(adit_close_volume(other), 0);
    IS(adit_close(from), 0);
    IS(adit_close(to), 0);
}

int main(int argc, char **argv)
{
    adit_volume *volume = NULL;
    IS(adit_open_volume(argc > 1 ? argv[1] : "mem:64M", NULL, &volume), 0);
    symbolic_links_say_what_they_were_told(volume);
    nodes_are_kept_and_shown(volume);
    a_handle_on_behalf_of_a_user_obeys(volume);
    times_are_set_to_the_nanosecond(volume);
    extended_attributes_are_kept_by_path_and_by_file(volume);
    sparse_files_are_told_apart_and_copied(volume);
    IS(adit_close_volume(volume), 0);
    printf("%d claims hold\n", claims);
    return 0;
}
