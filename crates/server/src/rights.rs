//! What a session may ask for: that depends on whose it is, and on whether it changes anything.
//!
//! A read-only session finds the volume as a process finds one that it has opened read-only.

use crate::session::Session;
use adit_base::{Errno, Error, Result};
use adit_fs::{Access, Credentials, FileKind, Follow, Fs, OpenFile, OpenFlags};
use adit_wire::calls::*;
use adit_wire::socket::own_uid;
use std::sync::Arc;

/// The user that a call acts for, if it is another one than the session's, and the call.
pub(crate) type Decoded<C> = (Option<Credentials>, C);

/// A read-only session wants to change something.
pub(crate) fn read_only() -> Error {
    Error::with(Errno::ROFS, "write to a volume that was opened read-only")
}

/// May the session do this call?
pub(crate) fn check<'a, C: VolumeCall<'a>>(session: &Session, decoded: &Decoded<C>) -> Result<()> {
    // What is opened is looked at where it is opened.
    if session.read_only && !matches!(C::CLASS, Class::Looks | Class::Opens) {
        return Err(read_only());
    }
    if session.privileged {
        return Ok(());
    }
    if decoded.0.is_some() {
        let what = "act for another user: only root and the server's own user may";
        return Err(Error::with(Errno::PERM, what));
    }
    if C::ADMINISTERS {
        let own = own_uid();
        let what = format!(
            "look after a served volume, or use blobs: only root and the server's user {own} may"
        );
        return Err(Error::with(Errno::ACCESS, what));
    }
    for place in decoded.1.places().into_iter().flatten() {
        if place.start.is_some_and(|id| !session.files().has_open(id)) {
            let what = "begin at an inode that the session doesn't have open";
            return Err(Error::with(Errno::ACCESS, what));
        }
    }
    Ok(())
}

/// May the session do this call about an open file? Of a read-only session no file is open for
/// writing, so the file system refuses what would write to it.
pub(crate) fn check_file_call(session: &Session, class: Class) -> Result<()> {
    if session.read_only && class == Class::Changes {
        return Err(read_only());
    }
    Ok(())
}

/// Opens for a read-only session.
pub(crate) async fn open_to_read(
    fs: &Fs,
    who: &Credentials,
    Open { place, flags, mode }: Open<'_>,
) -> Result<Arc<OpenFile>> {
    let place = place.at(who);
    let changing = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
    let creates = flags.contains(OpenFlags::CREATE);
    if !flags.intersects(changing) && !flags.writable() {
        return fs.open(place, flags, mode).await;
    }
    let links = if flags.contains(OpenFlags::NOFOLLOW) || flags.contains(OpenFlags::EXCLUSIVE) {
        Follow::No
    } else {
        Follow::Yes
    };
    let kind = match fs.stat(place, links).await {
        Err(error) if creates && error.errno() == Errno::NOENT => return Err(read_only()),
        found => found?.kind,
    };
    if creates && flags.contains(OpenFlags::EXCLUSIVE) {
        return Err(Errno::EXIST.into());
    }
    // A directory, a link or a node is refused by the file system, in its own words.
    if kind == FileKind::File && (flags.writable() || flags.contains(OpenFlags::TRUNCATE)) {
        fs.access(place, links, Access::WRITE).await?;
        return Err(read_only());
    }
    let file = fs.open(place, flags.difference(changing), mode).await?;
    let is_file = || file.kind() == FileKind::File;
    if flags.writable() || flags.contains(OpenFlags::TRUNCATE) && is_file() {
        // A file has come to that name since.
        fs.close(&file).await?;
        return Err(read_only());
    }
    Ok(file)
}

/// Checks rights for a read-only session.
pub(crate) async fn access_to_read(
    fs: &Fs,
    who: &Credentials,
    call: &CheckAccess<'_>,
) -> Result<()> {
    let place = call.place.at(who);
    fs.access(place, call.follow, call.wanted).await?;
    if call.wanted.contains(Access::WRITE) {
        let kind = fs.stat(place, call.follow).await?.kind;
        // Not of pipes and devices, which lie elsewhere.
        if matches!(
            kind,
            FileKind::File | FileKind::Directory | FileKind::Symlink
        ) {
            return Err(read_only());
        }
    }
    Ok(())
}
