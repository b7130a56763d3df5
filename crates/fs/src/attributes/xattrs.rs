//! Extended attributes by path and by descriptor, and the rights to see and change them: the rules
//! of xattr(7).
//!
//! Access control lists (`system.posix_acl_*`) are data: they are stored and returned, and grant
//! nothing.

use crate::inode::permission::STICKY;
use crate::inode::resolve;
use crate::inode::slot::Slots;
use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::{Effect, Fs};
use adit_base::{Errno, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{BlobId, Need, XATTR_NAME_BYTES_MAX, XattrMode, xattr_names, xattr_value};

/// Longest value that any file system of Linux takes. (All attributes of an inode share less than
/// that here.)
const XATTR_VALUE_BYTES_MAX: usize = 65_536;

/// The namespace of an attribute's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Namespace {
    /// Readers of the file read them, writers change them.
    User,
    /// For the privileged.
    Trusted,
    /// For security modules; every user reads them.
    Security,
    /// Access control lists.
    Acl {
        /// The list that new inodes in a directory would get.
        default: bool,
    },
    /// Others of the system's, which there are none of.
    System,
    /// None that is known.
    Unknown,
}

/// The namespace of a name; a blob without a name has but one, which takes all names.
fn namespace(slot: &Slot, name: &[u8]) -> Namespace {
    if slot.kind == FileKind::Blob as u8 {
        return Namespace::User;
    }
    match name {
        b"system.posix_acl_access" => return Namespace::Acl { default: false },
        b"system.posix_acl_default" => return Namespace::Acl { default: true },
        _ => (),
    }
    let prefixes: [(&[u8], Namespace); 4] = [
        (b"user.", Namespace::User),
        (b"trusted.", Namespace::Trusted),
        (b"security.", Namespace::Security),
        (b"system.", Namespace::System),
    ];
    (prefixes.iter())
        .find(|(prefix, _)| name.starts_with(prefix))
        .map_or(Namespace::Unknown, |(_, namespace)| *namespace)
}

/// ERANGE for an impossible length of a name.
fn check_length(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        1..=XATTR_NAME_BYTES_MAX => Ok(()),
        _ => Err(Errno::RANGE),
    }
}

/// Refuses a name that no attribute of this inode can have.
fn check_kept(slot: &Slot, name: &[u8]) -> Result<(), Errno> {
    let is_prefix = name.iter().position(|byte| *byte == b'.') == Some(name.len() - 1);
    match namespace(slot, name) {
        Namespace::System | Namespace::Unknown => Err(Errno::OPNOTSUPP),
        _ if is_prefix && slot.kind != FileKind::Blob as u8 => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// Only files and directories have attributes of users: the permission bits of other inodes grant
/// no right to write attributes.
fn takes_user_attributes(slot: &Slot) -> bool {
    matches!(
        FileKind::from_u8(slot.kind),
        Some(FileKind::File | FileKind::Directory | FileKind::Blob)
    )
}

/// Refuses unless the caller may read attributes of that name.
fn check_get(caller: &Credentials, slot: &Slot, name: &[u8]) -> Result<(), Errno> {
    match namespace(slot, name) {
        Namespace::User if !takes_user_attributes(slot) => Err(Errno::NODATA),
        Namespace::User | Namespace::Unknown => caller.check_access(slot, Access::READ),
        Namespace::Trusted if !caller.privileged => Err(Errno::NODATA),
        Namespace::Acl { .. } if slot.kind == FileKind::Symlink as u8 => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    }?;
    check_kept(slot, name)
}

/// The change of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Set,
    Remove,
}

/// Refuses unless the caller may set or remove attributes of that name.
fn check_set(
    caller: &Credentials,
    slot: &Slot,
    name: &[u8],
    purpose: Purpose,
) -> Result<(), Errno> {
    let is_directory = slot.kind == FileKind::Directory as u8;
    match namespace(slot, name) {
        Namespace::User if !takes_user_attributes(slot) => Err(Errno::PERM),
        Namespace::User if is_directory && slot.mode & STICKY != 0 && !caller.owns(slot) => {
            Err(Errno::PERM)
        }
        Namespace::User | Namespace::Unknown => caller.check_access(slot, Access::WRITE),
        Namespace::Trusted | Namespace::Security if !caller.privileged => Err(Errno::PERM),
        Namespace::Trusted | Namespace::Security | Namespace::System => Ok(()),
        Namespace::Acl { .. } if slot.kind == FileKind::Symlink as u8 => Err(Errno::OPNOTSUPP),
        Namespace::Acl { default: true } if !is_directory => match purpose {
            Purpose::Set => Err(Errno::ACCESS),
            Purpose::Remove => Ok(()),
        },
        Namespace::Acl { .. } => caller.check_owner(slot),
    }?;
    check_kept(slot, name)
}

/// The value of an attribute, if the caller may see it.
fn value_seen_by<'p>(
    pages: &'p impl Slots,
    caller: &Credentials,
    id: BlobId,
    name: &[u8],
) -> Result<&'p [u8], Stop> {
    let slot = pages.slot_of(id)?;
    check_get(caller, slot, name)?;
    Ok(xattr_value(pages, slot, id, name)?.ok_or(Errno::NODATA)?)
}

impl Fs {
    /// Reads an extended attribute; ENODATA when there is none that they may see.
    pub async fn xattr_get(&self, at: At<'_>, follow: Follow, name: &[u8]) -> Result<Vec<u8>> {
        check_length(name)?;
        self.store
            .view(|view| {
                let (id, _) = resolve::existing(view, &self.base, at, follow)?;
                Ok(value_seen_by(view, at.caller, id, name)?.to_vec())
            })
            .await
    }

    /// Sets an extended attribute; `mode`: it may, must or must not exist. Names begin with
    /// `user.`, `trusted.` or `security.`, or are those of access control lists, else EOPNOTSUPP.
    /// ENOSPC when all of an inode's attributes together exceed `XATTR_BYTES_MAX`.
    pub async fn xattr_set(
        &self,
        at: At<'_>,
        follow: Follow,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        check_length(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG.into());
        }
        self.transact(|stage| {
            let transaction = &mut *stage.transaction;
            let (id, _) = resolve::existing(transaction, &self.base, at, follow)?;
            check_set(at.caller, transaction.slot_ref(id)?, name, Purpose::Set)?;
            transaction.ask(Need::XATTR)?;
            let set = transaction.xattr_set(id, name, value, mode)?;
            if set.is_ok() {
                stage.then(Effect::Changed(id));
            }
            Ok(set)
        })
        .await?
    }

    /// Removes an extended attribute; ENODATA when there is none.
    pub async fn xattr_remove(&self, at: At<'_>, follow: Follow, name: &[u8]) -> Result<()> {
        check_length(name)?;
        self.transact(|stage| {
            let transaction = &mut *stage.transaction;
            let (id, _) = resolve::existing(transaction, &self.base, at, follow)?;
            let slot = transaction.slot(id)?;
            check_set(at.caller, &slot, name, Purpose::Remove)?;
            transaction.ask(Need::XATTR)?;
            let is_list = matches!(namespace(&slot, name), Namespace::Acl { .. });
            // Removing a missing list succeeds, as on Linux: none is left.
            if !transaction.xattr_remove(id, name)? && !is_list {
                return Err(Errno::NODATA.into());
            }
            stage.then(Effect::Changed(id));
            Ok(())
        })
        .await
    }

    /// Names of the extended attributes that they may see.
    pub async fn xattr_list(&self, at: At<'_>, follow: Follow) -> Result<Vec<Vec<u8>>> {
        self.store
            .view(|view| {
                let (id, _) = resolve::existing(view, &self.base, at, follow)?;
                let slot = view.slot_ref(id)?;
                let mut names = xattr_names(view, slot, id)?;
                names.retain(|name| match namespace(slot, name) {
                    Namespace::Trusted => at.caller.privileged,
                    Namespace::System | Namespace::Unknown => false,
                    _ => true,
                });
                Ok(names)
            })
            .await
    }

    /// Reads an extended attribute of an open file.
    pub async fn fxattr_get(&self, file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        let at = At::inode(file.credentials(), self.usable(file)?.id);
        self.xattr_get(at, Follow::No, name).await
    }

    /// Sets an extended attribute of an open file.
    pub async fn fxattr_set(
        &self,
        file: &OpenFile,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let at = At::inode(file.credentials(), self.usable(file)?.id);
        self.xattr_set(at, Follow::No, name, value, mode).await
    }

    /// Removes an extended attribute of an open file.
    pub async fn fxattr_remove(&self, file: &OpenFile, name: &[u8]) -> Result<()> {
        let at = At::inode(file.credentials(), self.usable(file)?.id);
        self.xattr_remove(at, Follow::No, name).await
    }

    /// Names of the extended attributes of an open file.
    pub async fn fxattr_list(&self, file: &OpenFile) -> Result<Vec<Vec<u8>>> {
        let at = At::inode(file.credentials(), self.usable(file)?.id);
        self.xattr_list(at, Follow::No).await
    }
}
