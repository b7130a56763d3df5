//! Permissions: the rules of POSIX as Linux has them, from the content of a slot. No IO, no state.
//!
//! Sources: path_resolution(7), inode(7), chmod(2), chown(2), and the behaviour of Linux where
//! these are silent. Access control lists are stored as data (see `attributes/xattrs.rs`) and not
//! consulted. Callers decide which inodes are checked; the rules are here.

use crate::types::{Access, Credentials, FileKind};
use adit_base::Errno;
use adit_store::format::Slot;

/// Set-user-ID on execution.
pub(crate) const SET_UID: u32 = libc::S_ISUID;
/// Set-group-ID on execution; on a directory: new inodes get its group.
pub(crate) const SET_GID: u32 = libc::S_ISGID;
/// On a directory: only owners delete.
pub(crate) const STICKY: u32 = libc::S_ISVTX;
/// Execution by the group.
const GROUP_EXECUTE: u32 = libc::S_IXGRP;
/// Execution by any class of users.
const ANY_EXECUTE: u32 = 0o111;

fn is_directory(slot: &Slot) -> bool {
    slot.kind == FileKind::Directory as u8
}

impl Credentials {
    /// True if `gid` is one of the groups.
    pub(crate) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Owns the inode, or need not.
    pub(crate) fn owns(&self, slot: &Slot) -> bool {
        self.privileged || self.uid == slot.uid
    }

    /// EPERM unless the inode is theirs.
    pub(crate) fn check_owner(&self, slot: &Slot) -> Result<(), Errno> {
        if self.owns(slot) {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }

    /// EACCES unless all of `wanted` is allowed.
    pub(crate) fn check_access(&self, slot: &Slot, wanted: Access) -> Result<(), Errno> {
        if self.privileged {
            let executable = is_directory(slot) || slot.mode & ANY_EXECUTE != 0;
            return if wanted.contains(Access::EXECUTE) && !executable {
                Err(Errno::ACCESS)
            } else {
                Ok(())
            };
        }
        let class = if self.uid == slot.uid {
            6
        } else if self.in_group(slot.gid) {
            3
        } else {
            0
        };
        let granted = Access::from_bits_truncate(slot.mode >> class);
        if granted.contains(wanted) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Checks that the caller may look up names in the directory.
    pub(crate) fn check_search(&self, directory: &Slot) -> Result<(), Errno> {
        if self.privileged {
            Ok(())
        } else {
            self.check_access(directory, Access::EXECUTE)
        }
    }

    /// Checks that the caller may add names to the directory.
    pub(crate) fn check_add(&self, directory: &Slot) -> Result<(), Errno> {
        self.check_access(directory, Access::WRITE | Access::EXECUTE)
    }

    /// Checks that the caller may remove the name of `victim` from the directory. EPERM for other
    /// users' files in a sticky one.
    pub(crate) fn check_remove(&self, directory: &Slot, victim: &Slot) -> Result<(), Errno> {
        self.check_add(directory)?;
        let theirs = self.owns(victim) || self.owns(directory);
        if directory.mode & STICKY != 0 && !theirs {
            Err(Errno::PERM)
        } else {
            Ok(())
        }
    }

    /// The set-ID bits that go when they write to or truncate this file.
    pub(crate) fn dropped_by_write(&self, slot: &Slot) -> u32 {
        if self.privileged || slot.kind != FileKind::File as u8 {
            0
        } else {
            self.dropped_set_ids(slot)
        }
    }

    /// The set-ID bits that a change of owner or group clears, for every caller.
    pub(crate) fn dropped_by_owner_change(&self, slot: &Slot) -> u32 {
        if is_directory(slot) {
            0
        } else {
            self.dropped_set_ids(slot)
        }
    }

    /// Set-group-ID without group execution once meant mandatory locking: it goes only for
    /// outsiders.
    fn dropped_set_ids(&self, slot: &Slot) -> u32 {
        let outsider = !self.privileged && !self.in_group(slot.gid);
        let drops_group = slot.mode & GROUP_EXECUTE != 0 || outsider;
        slot.mode & (SET_UID | if drops_group { SET_GID } else { 0 })
    }

    /// The permission bits that chmod sets: outsiders of its group don't get set-group-ID.
    pub(crate) fn mode_to_set(&self, slot: &Slot, mode: u32) -> u32 {
        if self.privileged || self.in_group(slot.gid) {
            mode
        } else {
            mode & !SET_GID
        }
    }

    /// Checks that the caller may give it to this user or this group (None: unchanged).
    pub(crate) fn check_owner_change(
        &self,
        slot: &Slot,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        let owner = self.uid == slot.uid;
        let uid_allowed = uid.is_none_or(|uid| owner && uid == slot.uid);
        let gid_allowed = gid.is_none_or(|gid| owner && (gid == slot.gid || self.in_group(gid)));
        // Clearing set-ID bits is a change of the mode, even if nothing else changes.
        let mode_allowed = owner || self.dropped_by_owner_change(slot) == 0;
        if self.privileged || (uid_allowed && gid_allowed && mode_allowed) {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }

    /// Gives a new inode its owner, and its group and permission bits as the directory has it.
    pub(crate) fn own(&self, slot: &mut Slot, directory: &Slot) {
        (slot.uid, slot.gid) = (self.uid, self.gid);
        if directory.mode & SET_GID == 0 {
            return;
        }
        slot.gid = directory.gid;
        if is_directory(slot) {
            slot.mode |= SET_GID;
        } else if slot.mode & GROUP_EXECUTE != 0 && !self.privileged && !self.in_group(slot.gid) {
            slot.mode &= !SET_GID;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials::user(uid, gid, groups)
    }

    fn inode(kind: FileKind, mode: u32, uid: u32, gid: u32) -> Slot {
        let mut slot = Slot::new_zeroed();
        slot.kind = kind as u8;
        (slot.mode, slot.uid, slot.gid) = (kind.mode_bits() | mode, uid, gid);
        slot
    }

    #[test]
    fn only_the_first_class_that_fits_counts() {
        let file = inode(FileKind::File, 0o047, 1, 2);
        let read = Access::READ;
        assert_eq!(
            user(1, 2, &[]).check_access(&file, read),
            Err(Errno::ACCESS)
        );
        assert_eq!(user(3, 2, &[]).check_access(&file, read), Ok(()));
        assert_eq!(user(3, 4, &[2]).check_access(&file, read), Ok(()));
        let all = Access::READ | Access::WRITE | Access::EXECUTE;
        assert_eq!(
            user(3, 4, &[2]).check_access(&file, all),
            Err(Errno::ACCESS)
        );
        assert_eq!(user(3, 4, &[5]).check_access(&file, all), Ok(()));
    }

    #[test]
    fn the_privileged_execute_only_what_somebody_may() {
        let root = user(0, 0, &[]);
        assert!(root.privileged);
        let execute = |slot| root.check_access(&slot, Access::EXECUTE);
        assert_eq!(
            execute(inode(FileKind::File, 0o666, 1, 1)),
            Err(Errno::ACCESS)
        );
        assert_eq!(execute(inode(FileKind::File, 0o601, 1, 1)), Ok(()));
        assert_eq!(execute(inode(FileKind::Directory, 0, 1, 1)), Ok(()));
        let rest = Access::READ | Access::WRITE;
        assert_eq!(
            root.check_access(&inode(FileKind::File, 0, 1, 1), rest),
            Ok(())
        );
    }

    #[test]
    fn in_a_sticky_directory_only_owners_delete() {
        let sticky = inode(FileKind::Directory, 0o1777, 10, 10);
        let file = inode(FileKind::File, 0o666, 1, 1);
        assert_eq!(user(1, 1, &[]).check_remove(&sticky, &file), Ok(()));
        assert_eq!(user(10, 1, &[]).check_remove(&sticky, &file), Ok(()));
        assert_eq!(
            user(2, 1, &[]).check_remove(&sticky, &file),
            Err(Errno::PERM)
        );
        assert_eq!(user(0, 0, &[]).check_remove(&sticky, &file), Ok(()));
        let plain = inode(FileKind::Directory, 0o777, 10, 10);
        assert_eq!(user(2, 1, &[]).check_remove(&plain, &file), Ok(()));
    }

    #[test]
    fn new_inodes_get_the_group_of_a_set_group_id_directory() {
        let directory = inode(FileKind::Directory, 0o2777, 10, 20);
        let mut file = inode(FileKind::File, 0o2755, 0, 0);
        user(1, 2, &[]).own(&mut file, &directory);
        assert_eq!((file.uid, file.gid, file.mode & 0o7777), (1, 20, 0o755));
        let mut file = inode(FileKind::File, 0o2755, 0, 0);
        user(1, 2, &[20]).own(&mut file, &directory);
        assert_eq!(file.mode & 0o7777, 0o2755);
        let mut below = inode(FileKind::Directory, 0o755, 0, 0);
        user(1, 2, &[]).own(&mut below, &directory);
        assert_eq!((below.gid, below.mode & 0o7777), (20, 0o2755));
    }

    #[test]
    fn set_id_bits_go_when_others_write_or_anybody_changes_the_owner() {
        let file = inode(FileKind::File, 0o6755, 1, 2);
        assert_eq!(user(1, 2, &[]).dropped_by_write(&file), SET_UID | SET_GID);
        assert_eq!(user(0, 0, &[]).dropped_by_write(&file), 0);
        assert_eq!(
            user(0, 0, &[]).dropped_by_owner_change(&file),
            SET_UID | SET_GID
        );
        let locking = inode(FileKind::File, 0o6745, 1, 2);
        assert_eq!(user(1, 2, &[]).dropped_by_write(&locking), SET_UID);
        assert_eq!(
            user(1, 3, &[]).dropped_by_write(&locking),
            SET_UID | SET_GID
        );
        let directory = inode(FileKind::Directory, 0o6755, 1, 2);
        assert_eq!(user(0, 0, &[]).dropped_by_owner_change(&directory), 0);
    }
}
