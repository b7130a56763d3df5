//! Extended attributes by path and by descriptor, and who may see and change which: the rules of xattr(7).
//!
//! Access control lists (`system.posix_acl_*`) are data: they are kept and returned, and decide nothing.

use crate::open::OpenFile;
use crate::permission::STICKY;
use crate::resolve::{self, Slots};
use crate::types::*;
use crate::volume::Fs;
use adit_base::{Errno, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{BlobId, XATTR_NAME_BYTES_MAX, XattrMode, xattr_names, xattr_value};

/// Whose attributes they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Namespace {
    /// For everybody who may read or write the file.
    User,
    /// For the privileged.
    Trusted,
    /// For security modules; everybody reads.
    Security,
    /// Access control lists.
    Acl {
        /// The list that new inodes in a directory would get.
        default: bool,
    },
}

/// The namespace of a name; a blob without a name has but one, which takes all names.
fn namespace(kind: u8, name: &[u8]) -> Result<Namespace, Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::RANGE);
    }
    if kind == FileKind::Blob as u8 {
        return Ok(Namespace::User);
    }
    let prefixes: [(&[u8], Namespace); 3] = [
        (b"user.", Namespace::User),
        (b"trusted.", Namespace::Trusted),
        (b"security.", Namespace::Security),
    ];
    for (prefix, namespace) in prefixes {
        match name.strip_prefix(prefix) {
            Some([]) => return Err(Errno::INVAL),
            Some(_) => return Ok(namespace),
            None => (),
        }
    }
    match name {
        b"system.posix_acl_access" => Ok(Namespace::Acl { default: false }),
        b"system.posix_acl_default" => Ok(Namespace::Acl { default: true }),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Only files and directories have attributes of users: on others, permission bits don't say who may write.
fn takes_user_attributes(slot: &Slot) -> bool {
    matches!(
        FileKind::from_u8(slot.kind),
        Some(FileKind::File | FileKind::Directory | FileKind::Blob)
    )
}

/// May they read attributes of that name?
fn check_get(who: &Credentials, slot: &Slot, name: &[u8]) -> Result<(), Errno> {
    match namespace(slot.kind, name)? {
        Namespace::User if !takes_user_attributes(slot) => Err(Errno::NODATA),
        Namespace::User => who.check_access(slot, Access::READ),
        Namespace::Trusted if !who.privileged => Err(Errno::NODATA),
        Namespace::Acl { .. } if slot.kind == FileKind::Symlink as u8 => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    }
}

/// May they set and remove attributes of that name?
fn check_set(who: &Credentials, slot: &Slot, name: &[u8]) -> Result<(), Errno> {
    let is_directory = slot.kind == FileKind::Directory as u8;
    match namespace(slot.kind, name)? {
        Namespace::User if !takes_user_attributes(slot) => Err(Errno::PERM),
        Namespace::User if is_directory && slot.mode & STICKY != 0 && !who.owns(slot) => {
            Err(Errno::PERM)
        }
        Namespace::User => who.check_access(slot, Access::WRITE),
        Namespace::Trusted | Namespace::Security if !who.privileged => Err(Errno::PERM),
        Namespace::Trusted | Namespace::Security => Ok(()),
        Namespace::Acl { .. } if slot.kind == FileKind::Symlink as u8 => Err(Errno::OPNOTSUPP),
        Namespace::Acl { default: true } if !is_directory => Err(Errno::ACCESS),
        Namespace::Acl { .. } => who.check_owner(slot),
    }
}

/// Is there an attribute of that name that they may see?
fn value_seen_by<'p>(
    pages: &'p impl Slots,
    who: &Credentials,
    id: BlobId,
    name: &[u8],
) -> Result<&'p [u8], Stop> {
    let slot = pages.slot_of(id)?;
    check_get(who, slot, name)?;
    Ok(xattr_value(pages, slot, id, name)?.ok_or(Errno::NODATA)?)
}

impl Fs {
    /// Reads an extended attribute; ENODATA when there is none that they may see.
    pub async fn xattr_get(&self, at: At<'_>, follow: Follow, name: &[u8]) -> Result<Vec<u8>> {
        self.store
            .view(|view| {
                let (id, _) = resolve::existing(view, &self.base, at, follow)?;
                Ok(value_seen_by(view, at.who, id, name)?.to_vec())
            })
            .await
    }

    /// Sets an extended attribute; `mode` says whether it may, must or must not exist. Names begin with `user.`,
    /// `trusted.` or `security.`, or are those of access control lists, else EOPNOTSUPP. ENOSPC when all of an inode's
    /// attributes together exceed `XATTR_BYTES_MAX`.
    pub async fn xattr_set(
        &self,
        at: At<'_>,
        follow: Follow,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.store
            .transact(|transaction| {
                let (id, _) = resolve::existing(transaction, &self.base, at, follow)?;
                check_set(at.who, transaction.slot_ref(id)?, name)?;
                transaction.xattr_set(id, name, value, mode)
            })
            .await?
    }

    /// Removes an extended attribute; ENODATA when there is none.
    pub async fn xattr_remove(&self, at: At<'_>, follow: Follow, name: &[u8]) -> Result<()> {
        self.store
            .transact_freeing(|transaction| {
                let (id, _) = resolve::existing(transaction, &self.base, at, follow)?;
                check_set(at.who, transaction.slot_ref(id)?, name)?;
                match transaction.xattr_remove(id, name)? {
                    true => Ok(()),
                    false => Err(Errno::NODATA.into()),
                }
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
                names.retain(|name| match namespace(slot.kind, name) {
                    Ok(Namespace::Trusted) => at.who.privileged,
                    Ok(_) => true,
                    Err(_) => false,
                });
                Ok(names)
            })
            .await
    }

    /// Reads an extended attribute of an open file.
    pub async fn fxattr_get(&self, file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        let id = self.usable(file)?.id;
        self.xattr_get(At::inode(file.who(), id), Follow::No, name)
            .await
    }

    /// Sets an extended attribute of an open file.
    pub async fn fxattr_set(
        &self,
        file: &OpenFile,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let id = self.usable(file)?.id;
        self.xattr_set(At::inode(file.who(), id), Follow::No, name, value, mode)
            .await
    }

    /// Removes an extended attribute of an open file.
    pub async fn fxattr_remove(&self, file: &OpenFile, name: &[u8]) -> Result<()> {
        let id = self.usable(file)?.id;
        self.xattr_remove(At::inode(file.who(), id), Follow::No, name)
            .await
    }

    /// Names of the extended attributes of an open file.
    pub async fn fxattr_list(&self, file: &OpenFile) -> Result<Vec<Vec<u8>>> {
        let id = self.usable(file)?.id;
        self.xattr_list(At::inode(file.who(), id), Follow::No).await
    }
}
