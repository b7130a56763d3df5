//! POSIX on blobs: inodes, directories, locks.
