//! A path of the library that `LD_PRELOAD` can say: the loader divides that at spaces and colons,
//! and knows no way to quote them. A library whose path has one is reached by a symbolic link.
//!
//! Invariant: nobody but this user and root can change where the link leads. It lies in a directory
//! of this user's, in one where nobody else renames or removes that.

use adit::{Errno, Error, Result};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Where links may lie, in this order.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];
/// Of a directory in which only the owner of a file removes it.
const STICKY: u32 = 0o1000;

/// The library's path, or that of a link to it.
pub(crate) fn loadable(library: PathBuf) -> Result<PathBuf> {
    if can_be_said(library.as_os_str()) {
        return Ok(library);
    }
    let places = PLACES.iter().map(Path::new);
    let linked = places
        .filter(|place| can_be_trusted(place, true))
        .find_map(|place| {
            let user = rustix::process::geteuid().as_raw();
            linked_in(&place.join(format!("adit.run-{user}")), &library).ok()
        });
    linked.ok_or_else(|| {
        let what = format!(
            "start a program with {}: a path with a space or a colon can't be said in LD_PRELOAD, and \
             there is no place for a link to it ({}); copy adit and the library elsewhere",
            library.display(),
            PLACES.join(", ")
        );
        Error::with(Errno::INVAL, what)
    })
}

fn can_be_said(path: &OsStr) -> bool {
    // Spaces as isspace(3) has them, and `$`, which begins a name that the loader replaces.
    let divides = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r' | b':' | b'$');
    !path.as_bytes().iter().any(divides)
}

/// Is it a directory in which nobody but root and this user can exchange what this user has made?
fn can_be_trusted(directory: &Path, may_be_shared: bool) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(directory).is_ok_and(|found| {
        let is_shared = found.mode() & 0o022 != 0;
        let is_safe = !is_shared || may_be_shared && found.mode() & STICKY != 0;
        found.is_dir() && (found.uid() == 0 || found.uid() == user) && is_safe
    })
}

/// The link in a directory that is made if it isn't there. Other users go through it, too: a program
/// may become one of them.
fn linked_in(directory: &Path, library: &Path) -> std::io::Result<PathBuf> {
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        // Whatever the process's mask takes.
        Ok(()) => std::fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        Err(_) if can_be_trusted(directory, false) => {}
        Err(_) => return Err(std::io::ErrorKind::PermissionDenied.into()),
    }
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let link = directory.join(format!("{:016x}.so", hasher.finish()));
    if std::fs::read_link(&link).is_ok_and(|to| to == library) {
        return Ok(link);
    }
    let fresh = link.with_extension(std::process::id().to_string());
    symlink(library, &fresh)?;
    std::fs::rename(&fresh, &link)?;
    Ok(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_divides_a_list_of_libraries_can_t_be_said() {
        for path in ["/a b/c.so", "/a:b/c.so", "/a\tb", "/a\nb", "/$LIB/c.so"] {
            assert!(!can_be_said(path.as_ref()), "{path}");
        }
        assert!(can_be_said("/usr/lib/ä-b_c.so.1".as_ref()));
    }

    #[test]
    fn a_link_leads_to_the_library_and_lies_in_a_directory_of_this_user_s_alone() {
        let place = tempfile::tempdir().expect("made");
        let directory = place.path().join("links");
        let library = Path::new("/a b/c.so");
        let link = linked_in(&directory, library).expect("linked");
        assert_eq!(std::fs::read_link(&link).expect("read"), library);
        assert_eq!(linked_in(&directory, library).expect("there"), link);
        std::fs::remove_file(&link).expect("removed");
        symlink("/elsewhere", &link).expect("linked");
        linked_in(&directory, library).expect("linked anew");
        assert_eq!(std::fs::read_link(&link).expect("read"), library);
        let all = Permissions::from_mode(0o777);
        std::fs::set_permissions(&directory, all).expect("set");
        assert!(
            linked_in(&directory, library).is_err(),
            "others may write there"
        );
        let to = place.path().join("to");
        symlink(place.path(), &to).expect("linked");
        assert!(
            linked_in(&to, library).is_err(),
            "a link is nobody's directory"
        );
    }
}
